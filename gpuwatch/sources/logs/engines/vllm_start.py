"""What vLLM says while it starts: the size of its KV pool, its limits and how long each phase took."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..found import Facts, Found, Notice, Phrase
from ..numbers.numbers import NUMBER, size_bytes, text_of, value

_COUNT = r"[\d,]{1,20}"
_UNIT = r"([KMGT]iB)"


def _fact(label: str, pattern: str, unit_group: int = 0) -> Callable[[str, int], tuple[Found, ...]]:
    """A reader of one number that becomes a label; with `unit_group`, a size in bytes."""
    compiled = re.compile(pattern)

    def read(text: str, at: int) -> tuple[Found, ...]:
        found = compiled.match(text, at)
        if not found:
            return ()
        number = size_bytes(found[1], found[unit_group]) if unit_group else value(found[1])
        return () if number is None else (Facts({label: text_of(number)}),)

    return read


def _phase(kind: str, pattern: str) -> Callable[[str, int], tuple[Found, ...]]:
    """A reader of a phase: `seconds` and, where the pattern has it, `bytes` (groups named so, with `unit`)."""
    compiled = re.compile(pattern)

    def read(text: str, at: int) -> tuple[Found, ...]:
        found = compiled.match(text, at)
        if not found:
            return ()
        groups = found.groupdict()
        detail = {"seconds": text_of(float(groups["seconds"]))}
        size = size_bytes(groups["bytes"], groups["unit"]) if groups.get("bytes") else None
        if size is not None:
            detail["bytes"] = text_of(size)
        return (Notice(kind, detail),)

    return read


_CONCURRENCY = re.compile(rf"Maximum concurrency for ({_COUNT}) tokens per request: ({NUMBER})x")
_VERSION = re.compile(r"(?:version v?|LLM engine \(v)(\d{1,4}(?:\.\d{1,4}){1,3}(?:\.?(?:rc|post|dev|a|b)\d{1,6}){0,3})")
_CONFIG = {
    "max_seq_len": "max_model_len",
    "max_model_len": "max_model_len",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
    "data_parallel_size": "data_parallel_size",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "num_speculative_tokens": "num_speculative_tokens",
}
_SETTING = re.compile(rf"\b({'|'.join(_CONFIG)})'?[=:] ?({NUMBER})")
_CONFIG_CHARS = 16 * 1024


def _concurrency(text: str, at: int) -> tuple[Found, ...]:
    found = _CONCURRENCY.match(text, at)
    length = value(found[1]) if found else None
    if not found or length is None:
        return ()
    return (Facts({"max_model_len": text_of(length), "kv_max_concurrency": text_of(float(found[2]))}),)


def _configuration(text: str, at: int) -> tuple[Found, ...]:
    """The version, and the numbers of the configuration; its names, paths and addresses are read over."""
    labels: dict[str, str] = {}
    version = _VERSION.search(text, at, at + 200)
    if version:
        labels["engine_version"] = version[1]
    for key, number in _SETTING.findall(text[at : at + _CONFIG_CHARS]):
        labels[_CONFIG[key]] = text_of(float(number))
    return (Facts(labels),) if labels else ()


_RESERVED = re.compile(rf"the rest of the memory reserved for KV Cache is ({NUMBER}) ?{_UNIT}")
_WEIGHTS = re.compile(rf"model weights take ({NUMBER}) ?{_UNIT}")
_PEAK = re.compile(rf"PyTorch activation peak memory takes ({NUMBER}) ?{_UNIT}")


def _memory(text: str, at: int) -> tuple[Found, ...]:
    labels = {}
    for label, pattern in (("kv_memory_bytes", _RESERVED), ("weights_bytes", _WEIGHTS), ("activation_bytes", _PEAK)):
        found = pattern.search(text[at : at + 1024])
        size = size_bytes(found[1], found[2]) if found else None
        if size is not None:
            labels[label] = text_of(size)
    return (Facts(labels),) if labels else ()


def _dash(literal: str, read: Callable[[str, int], tuple[Found, ...]]) -> Phrase:
    return Phrase(literal, "vllm", read)


PHRASES = (
    _dash("GPU KV cache size: ", _fact("kv_capacity_tokens", rf"GPU KV cache size: ({_COUNT}) tokens")),
    _dash(
        "Available KV cache memory: ",
        _fact("kv_memory_bytes", rf"Available KV cache memory: ({NUMBER}) {_UNIT}", unit_group=2),
    ),
    _dash("Maximum concurrency for ", _concurrency),
    _dash(
        "Setting attention block size to ",
        _fact("kv_block_tokens", rf"Setting attention block size to ({_COUNT}) tokens"),
    ),
    _dash("# GPU blocks: ", _fact("kv_total_blocks", rf"# GPU blocks: ({_COUNT})")),
    _dash("# cuda blocks: ", _fact("kv_total_blocks", rf"# cuda blocks: ({_COUNT})")),
    _dash("Using max model len ", _fact("max_model_len", rf"Using max model len ({_COUNT})")),
    _dash(
        "Chunked prefill is enabled with max_num_batched_tokens=",
        _fact("max_num_batched_tokens", rf"Chunked prefill is enabled with max_num_batched_tokens=({_COUNT})"),
    ),
    _dash("vLLM API server version ", _configuration),
    _dash("LLM engine (v", _configuration),
    _dash("non-default args: ", _configuration),
    _dash("model weights take ", _memory),
    _dash("Loading weights took ", _phase("weights_loaded", rf"Loading weights took (?P<seconds>{NUMBER}) seconds")),
    _dash(
        "Model loading took ",
        _phase(
            "model_loaded",
            rf"Model loading took (?P<bytes>{NUMBER}) ?(?P<unit>[KMGT]i?B)(?: memory)? and (?P<seconds>{NUMBER}) seconds",
        ),
    ),
    _dash("torch.compile takes ", _phase("compiled", rf"torch\.compile takes (?P<seconds>{NUMBER}) s in total")),
    _dash(
        "Graph capturing finished in ",
        _phase(
            "graphs_captured",
            rf"Graph capturing finished in (?P<seconds>{NUMBER}) secs?(?:, took (?P<bytes>{NUMBER}) (?P<unit>[KMGT]iB))?",
        ),
    ),
    _dash(
        "init engine (", _phase("engine_initialised", rf"init engine \([^)]{{0,200}}\) took (?P<seconds>{NUMBER}) s")
    ),
)
