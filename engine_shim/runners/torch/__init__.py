"""A runner that computes tokens with PyTorch."""
