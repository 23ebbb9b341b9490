"""Errors that name a cause, in the words that several engines share because a library prints them."""

from __future__ import annotations

import re

from .found import Found, Notice, Phrase, says
from .kinds import TEXT_VALUES
from .numbers.numbers import NUMBER, size_bytes, text_of, value

_SIZE = rf"({NUMBER}) ?([KMGT]iB|bytes)"
_REACH_CHARS = 2048
_MEMORY = (
    ("asked_bytes", re.compile(rf"Tried to allocate {_SIZE}")),
    ("total_bytes", re.compile(rf"total capacity of {_SIZE}")),
    ("free_bytes", re.compile(rf"{_SIZE} (?:is )?free")),
    ("allocated_bytes", re.compile(rf"{_SIZE} is allocated by PyTorch")),
    ("private_bytes", re.compile(rf"{_SIZE} allocated in private pools")),
    ("reserved_bytes", re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")),
)
_LENGTH = re.compile(r"max(?:imum)? (?:seq len|model length|sequence length) \((\d{1,12})\)")
_NEED = re.compile(rf"\(?{_SIZE} KV cache is needed")
_HAVE = re.compile(rf"available KV cache memory \({_SIZE}\)")
_COLLECTIVE_RANK = re.compile(r"\[?[Rr]ank ?(\d{1,5})\]")
_OPERATION = re.compile(r"OpType=([A-Z_]{1,32})")
_RAN_FOR = re.compile(r"ran for (\d{1,12}) milliseconds")
_STUCK_FOR = re.compile(r"watchdog got stuck for (\d{1,9}) seconds")
_WEIGHTS = re.compile(r"(awq|gptq|fp8|fp4|bitsandbytes|gguf)\w{0,16} quantization is not fully optimized")
_NATIVE = re.compile(r"native support for (FP8|FP4|NVFP4|MXFP4)")
_PROMPT = re.compile(r"[Pp]rompt \((\d{1,12}) tokens\).{0,120}?(?:limit of (\d{1,12})|capacity)")
_INPUT = re.compile(r"Input length \((\d{1,12}) tokens\) exceeds the maximum allowed length \((\d{1,12}) tokens\)")


def _out_of_memory(text: str, at: int) -> tuple[Found, ...]:
    tail = text[at : at + _REACH_CHARS]
    detail = {}
    for key, pattern in _MEMORY:
        found = pattern.search(tail)
        size = size_bytes(found[1], found[2]) if found else None
        if size is not None:
            detail[key] = text_of(size)
    return (Notice("out_of_memory", detail),)


def _no_blocks(text: str, at: int) -> tuple[Found, ...]:
    return (Notice("does_not_fit", {"have_bytes": "0"}),)


def _one_request(text: str, at: int) -> tuple[Found, ...]:
    tail = text[at : at + _REACH_CHARS]
    detail = {}
    length = _LENGTH.search(tail)
    if length:
        detail["need_tokens"] = length[1]
    for key, pattern in (("need_bytes", _NEED), ("have_bytes", _HAVE)):
        found = pattern.search(tail)
        size = size_bytes(found[1], found[2]) if found else None
        if size is not None:
            detail[key] = text_of(size)
    return (Notice("does_not_fit", detail),)


def _collective(text: str, at: int) -> tuple[Found, ...]:
    """The rank that says so is a victim; which one never came, it cannot know."""
    tail = text[at : at + _REACH_CHARS]
    detail = {}
    rank = _COLLECTIVE_RANK.search(text[max(0, at - 120) : at])
    operation, ran = _OPERATION.search(tail), _RAN_FOR.search(tail)
    if rank:
        detail["rank"] = rank[1]
    if operation:
        word = operation[1].strip("_").lower().replace("_", "")
        detail["operation"] = word if word in TEXT_VALUES else "unknown"
    milliseconds = value(ran[1]) if ran else None
    if milliseconds is not None:
        detail["seconds"] = text_of(milliseconds / 1000)
    return (Notice("collective_timeout", detail),)


def _stuck(text: str, at: int) -> tuple[Found, ...]:
    """The library's own monitor: its watchdog waits for a collective that does not return."""
    rank = _COLLECTIVE_RANK.search(text[max(0, at - 120) : at])
    found = _STUCK_FOR.search(text[at : at + 120])
    detail = {"rank": rank[1]} if rank else {}
    return (Notice("collective_timeout", {**detail, **({"seconds": found[1]} if found else {})}),)


def _slow_weights(text: str, at: int) -> tuple[Found, ...]:
    found = _WEIGHTS.search(text[max(0, at - 64) : at + 64])
    return (Notice("slow_kernel_fallback", {"method": found[1] if found else "unknown"}),)


def _not_native(text: str, at: int) -> tuple[Found, ...]:
    found = _NATIVE.search(text[at : at + 120])
    return (Notice("slow_kernel_fallback", {"method": found[1].lower() if found else "unknown"}),)


def _prompt_too_long(text: str, at: int) -> tuple[Found, ...]:
    found = _PROMPT.search(text[max(0, at - 160) : at + 160])
    detail = {"need_tokens": found[1]} if found else {}
    if found and found[2]:
        detail["have_tokens"] = found[2]
    return (Notice("unschedulable", detail),)


def _input_too_long(text: str, at: int) -> tuple[Found, ...]:
    found = _INPUT.match(text, at)
    return (Notice("unschedulable", {"need_tokens": found[1], "have_tokens": found[2]}),) if found else ()


def _shutting_down(text: str, at: int) -> tuple[Found, ...]:
    return (Notice("stopped"),) if at == 0 else ()


PHRASES = (
    Phrase("out of memory. Tried to allocate", "", _out_of_memory),
    Phrase("No available memory for the cache blocks", "", _no_blocks),
    Phrase("To serve at least one request with the model", "", _one_request),
    Phrase("EngineDeadError", "", says("engine_dead")),
    Phrase("EngineCore encountered a fatal error", "", says("engine_dead")),
    Phrase("EngineCore encountered an issue", "", says("engine_dead")),
    Phrase("Watchdog caught collective operation timeout", "", _collective),
    Phrase("Heartbeat monitor timed out", "", _stuck),
    Phrase("watchdog got stuck for ", "", _stuck),
    Phrase("Engine iteration timed out", "", says("watchdog_timeout")),
    Phrase("RPC call to execute_model timed out", "", says("watchdog_timeout")),
    Phrase("RPC call to sample_tokens timed out", "", says("watchdog_timeout")),
    Phrase("uncorrectable ECC error", "", says("ecc_error")),
    Phrase("quantization is not fully optimized", "", _slow_weights),
    Phrase("does not have native support for FP", "", _not_native),
    Phrase("is too long and exceeds", "", _prompt_too_long),
    Phrase("Input length (", "", _input_too_long),
    Phrase("Shutting down", "", _shutting_down),
    Phrase(
        "[shutdown] API server: shutdown triggered", "vllm", says("stopped")
    ),  # by a signal; a dead core ends it silently
    Phrase("Application shutdown complete", "", says("stopped")),
    Phrase("cleaning up before exit", "", says("stopped")),
)
