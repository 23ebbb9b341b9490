"""The decoder in plain PyTorch and what belongs to it: shape, weights, tokens, sampling."""
