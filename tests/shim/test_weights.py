"""Loading weights: what is wrong with a folder is said by file and key."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from engine_shim.model.config import config_of, read_config
from engine_shim.model.safetensors_folder import INDEX
from engine_shim.model.shapes import SHAPES
from engine_shim.model.weights import load_folder, seeded_weights

GOOD = {
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "tie_word_embeddings": True,
}
BAD = {
    "another family": ({"model_type": "gpt2"}, "model_type"),
    "a missing size": ({"vocab_size": None}, "vocab_size"),
    "a size that is text": ({"hidden_size": "16"}, "hidden_size"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers"),
    "heads that do not group": ({"num_key_value_heads": 3}, "num_key_value_heads"),
    "weights in few bits": ({"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    "a sliding window": ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, "sliding_window"),
    "a window in some layers": ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    "half a head rotated": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act"),
    "another rope": ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
    "half a llama3 rope": ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor"),
    "rope that is no object": ({"rope_parameters": [1]}, "rope_parameters"),
    "an end token that is text": ({"eos_token_id": "</s>"}, "eos_token_id"),
    "a negative epsilon": ({"rms_norm_eps": -1}, "rms_norm_eps"),
}


def write_config(folder, changes=()):
    (folder / "config.json").write_text(json.dumps(GOOD | dict(changes)))
    return folder / "config.json"


@pytest.mark.parametrize(("changes", "key"), BAD.values(), ids=BAD.keys())
def test_a_wrong_config_is_refused_with_its_key(tmp_path, changes, key):
    """Each wrong value is a ValueError that names config.json and the key."""
    with pytest.raises(ValueError, match=rf"config\.json.*{key}"):
        read_config(write_config(tmp_path, changes))


@pytest.mark.parametrize("text", ["", "[]", "{", '"llama"'])
def test_a_config_that_is_no_json_object_is_refused(tmp_path, text):
    """Garbage is a ValueError with the path."""
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        read_config(tmp_path / "config.json")


def test_a_folder_without_weights_says_so(tmp_path):
    """No *.safetensors."""
    write_config(tmp_path)
    with pytest.raises(ValueError, match="safetensors"):
        load_folder(tmp_path)


def test_a_truncated_weights_file_is_named(tmp_path):
    """A file cut in the middle is a ValueError with its path."""
    write_config(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(32, 16)}, tmp_path / "model.safetensors")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        load_folder(tmp_path)


def test_missing_and_misshapen_tensors_are_named(tmp_path):
    """The first tensor that is absent or of another shape than config.json says is named."""
    write_config(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(32, 16)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.layers\.0\.input_layernorm\.weight"):
        load_folder(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(32, 17)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"embed_tokens.*\(32, 17\).*\(32, 16\)"):
        load_folder(tmp_path)


def write_index(folder, weight_map):
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_a_shard_that_is_missing_is_named(tmp_path):
    """The index names two files, one is there."""
    write_config(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(32, 16)}, tmp_path / "a.safetensors")
    write_index(tmp_path, {"model.embed_tokens.weight": "a.safetensors", "model.norm.weight": "b.safetensors"})
    with pytest.raises(ValueError, match=r"b\.safetensors.*missing"):
        load_folder(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path):
    """The index promises what the file does not hold."""
    write_config(tmp_path)
    save_file({"something": torch.zeros(1)}, tmp_path / "a.safetensors")
    write_index(tmp_path, {"model.embed_tokens.weight": "a.safetensors"})
    with pytest.raises(ValueError, match=r"a\.safetensors.*embed_tokens"):
        load_folder(tmp_path)


@pytest.mark.parametrize("file", ["../secret.safetensors", "/etc/passwd", "a.bin", ""])
def test_an_index_cannot_point_out_of_its_folder(tmp_path, file):
    """Only *.safetensors files of the folder itself are opened, whatever the index says."""
    write_config(tmp_path)
    write_index(tmp_path, {"model.embed_tokens.weight": file})
    with pytest.raises(ValueError, match="no \\*\\.safetensors file of the folder"):
        load_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}'])
def test_a_broken_index_is_named(tmp_path, text):
    """Garbage is a ValueError with the file and the key."""
    write_config(tmp_path)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ValueError, match=r"index\.json.*weight_map"):
        load_folder(tmp_path)


def test_quantized_tensors_are_refused(tmp_path):
    """A checkpoint in int8 without a word about it in config.json is not computed as if it were floats."""
    write_config(tmp_path)
    save_file({"model.embed_tokens.weight": torch.zeros(32, 16, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"embed_tokens.*int8"):
        load_folder(tmp_path)


def test_seeded_weights_are_reproducible_and_of_the_shape():
    """The same seed gives the same tiny model, another seed another one."""
    tiny = config_of(SHAPES["tiny"])
    one, same, other = (seeded_weights(tiny, seed) for seed in (1, 1, 2))
    assert torch.equal(one.layers[3].down, same.layers[3].down)
    assert not torch.equal(one.embedding, other.embedding)
    assert one.layers[0].qkv.shape == ((4 + 2 * 2) * 32, 128)
