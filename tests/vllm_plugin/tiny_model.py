"""A model folder that a real vLLM serves with random weights: a configuration and a tokenizer of 512 words."""

import json
from pathlib import Path

VOCABULARY = 512


def write_tiny_model(folder: Path) -> None:
    """Write config.json, tokenizer.json and tokenizer_config.json of a Llama with two small layers."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 352,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": VOCABULARY, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
    }  # fmt: skip
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2} | {chr(0x100 + n): n for n in range(3, VOCABULARY)}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None,
        "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    for name, content in {"config": config, "tokenizer": tokenizer, "tokenizer_config": settings}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
