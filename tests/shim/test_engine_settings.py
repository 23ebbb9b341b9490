"""Engine settings refuse what makes no sense, and say which key and what to do."""

import pytest

from engine_shim.devices.profile_file import device_named
from engine_shim.devices.profiles import DEVICES
from engine_shim.model.shapes import SHAPES, Shape, shape_named
from engine_shim.settings.engine import EngineSettings, room_tokens

BAD = {
    "runs cannot share a prefix": ({"kv_layout": "contiguous"}, "prefix_cache = false"),
    "an unknown layout": ({"kv_layout": "linked"}, "kv_layout must be one of paged, contiguous"),
    "an unknown eviction": ({"prefix_evict": "random"}, "prefix_evict must be one of lru, fifo"),
    "more cache than pool": ({"prefix_cache_ratio": 1.5}, "prefix_cache_ratio must be between 0 and 1"),
    "an unknown KV type": ({"kv_dtype": "int4"}, "kv_dtype must be one of fp32, bf16, fp16, fp8, int8"),
    "misspelt": ({"max_num_seq": 4}, "unknown key 'max_num_seq'; did you mean 'max_num_seqs'"),
    "wrong type": ({"max_num_seqs": "many"}, "max_num_seqs must be an integer"),
    "a bool is no integer": ({"max_num_seqs": True}, "max_num_seqs must be an integer"),
    "zero sequences": ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
    "no room for one token each": ({"max_num_seqs": 64, "max_step_tokens": 32}, "raise max_step_tokens"),
    "watermark of everything": ({"watermark_ratio": 1.0}, "watermark_ratio must be"),
    "not a number": ({"watermark_ratio": float("nan")}, "watermark_ratio must be"),
    "pool of nothing": ({"kv_pool_ratio": 0}, "kv_pool_ratio must be above 0"),
    "less than a block": ({"kv_pool_tokens": 8}, "below one block"),
    "unknown policy": ({"admission": "lifo"}, "admission must be one of fifo, bypass"),
    "unknown reserve": ({"reserve": "all"}, "reserve must be one of none, prompt, max_tokens"),
    "unknown model": ({"model": "9b"}, "use one of tiny, 1b, 7b"),
    "unknown dtype": ({"dtype": "int3"}, "dtype must be one of"),
    "chunks without chunking": ({"chunked_prefill": False, "max_chunk_tokens": 64}, "max_chunk_tokens has no meaning"),
    "heads that do not divide": ({"model": "7b", "tensor_parallel": 3}, "tensor_parallel must divide the 8 KV heads"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_name_the_key(case: str) -> None:
    table, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        EngineSettings.from_table(table)


def test_a_ratio_may_be_written_as_an_integer() -> None:
    assert EngineSettings.from_table({"watermark_ratio": 0}).watermark_ratio == 0.0


def test_the_pool_is_what_the_weights_leave() -> None:
    """A 7B model with grouped queries has 128 KiB of KV a token: hundreds of thousands of tokens on an 80 GB card."""
    settings = EngineSettings(model="7b")
    assert settings.kv_bytes_per_token == 131_072
    room = room_tokens(settings, device_named("h100"))
    assert 350_000 < room < 600_000
    assert settings.pool_blocks(device_named("h100")) == room // 16
    third = settings.replaced({"kv_pool_ratio": 0.3})
    assert third.pool_blocks(device_named("h100")) == int(room * 0.3) // 16


def test_what_does_not_fit_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"70b.*141 GB.*raise tensor_parallel"):
        EngineSettings(model="70b").pool_blocks(device_named("h100"))
    assert EngineSettings(model="70b", tensor_parallel=4).pool_blocks(device_named("h100")) > 0
    with pytest.raises(ValueError, match=r"kv_pool_tokens \(130000\) is more than 1 × l4 has room for"):
        EngineSettings(model="7b", kv_pool_tokens=130_000).pool_blocks(device_named("l4"))
    with pytest.raises(ValueError, match="kv_pool_tokens must be set"):
        EngineSettings().pool_blocks()


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.24), ("7b", 7.24), ("8b", 8.03), ("13b", 13.0), ("70b", 70.6)])
def test_shapes_have_the_published_sizes(name: str, billions: float) -> None:
    assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_shape_comes_from_a_model_config() -> None:
    config = {
        "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 14_336, "vocab_size": 32_000,
    }  # fmt: skip
    read = Shape.from_config("7b", config)
    assert read == shape_named("7b")
    with pytest.raises(ValueError, match="'vocab_size' is missing"):
        Shape.from_config("cut", {key: value for key, value in config.items() if key != "vocab_size"})
    with pytest.raises(ValueError, match="multiple of kv_heads"):
        Shape.from_config("odd", {**config, "num_key_value_heads": 5})


def test_every_device_has_peaks_in_base_units() -> None:
    for device in DEVICES.values():
        assert 2e11 < device.bandwidth_bytes_per_s < 1e13
        assert 1e13 < device.bf16_flops_per_s <= device.fp8_flops_per_s < 1e16
        assert 1e10 < device.memory_bytes < 1e12
        assert device.idle_power_watts < device.power_limit_watts
    with pytest.raises(ValueError, match="use one of a10, l4"):
        device_named("v100")
