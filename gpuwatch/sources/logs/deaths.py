"""Processes that end or never come up, in the words of engines, launchers and the kernel.

Which process was killed for want of host memory is told as whether its name is one that engines run under; the name itself
is not kept.
"""

from __future__ import annotations

import re

from .found import Found, Notice, Phrase, Reader, says
from .numbers.numbers import NUMBER, size_bytes, text_of

_REACH_CHARS = 512
_WORKER = re.compile(
    r"Worker (?:proc \S{1,64} died unexpectedly|\w{1,64} pid \d{1,10} died)(?:(?: \(|, )exit code: (-?\d{1,5}))?"
)
_ENGINE_PROCESS = re.compile(r"Engine (?:core proc \S{1,64} died unexpectedly|process \(pid \d{1,10}\) died)")
_SHARD = re.compile(r"hard process was signaled to shutdown with signal (\d{1,3})")
_KILLED = re.compile(r"Kill(?:ed)? process \d{1,10} \(([^)]{1,64})\)")
_RESIDENT = re.compile(r"anon-rss:(\d{1,15})kB")
_ENGINES = re.compile(
    r"python|vllm|sglang|text-generation|tritonserver|trtllm|tensorrt|llama|ollama|lmdeploy|pt_main|ray|enginecore|worker|dynamo",
    re.IGNORECASE,
)
_SIZE = rf"({NUMBER}) ?([KMGT]iB)"
_FREE_AT_START = re.compile(rf"Free memory on device[^(]{{0,16}} \(({NUMBER})/{NUMBER} GiB\)")
_WANTED_AT_START = re.compile(rf"desired GPU memory utilization \({NUMBER}, ({NUMBER}) GiB\)")
_POOL_TOKENS = re.compile(r"max seq len \((\d{1,12})\)[^(]{0,40}$")
_POOL_HAS = re.compile(r"maximum number of tokens that can be stored in KV cache \((\d{1,12})\)")
_PREFILL = re.compile(r"Not enough memory to handle (\d{1,12}) prefill tokens")
_ON_DEVICE = re.compile(rf"allocating {_SIZE} on device \d{{1,3}}: $")


def _worker(text: str, at: int) -> tuple[Found, ...]:
    found = _WORKER.match(text, at)
    if not found:
        return ()
    return (Notice("process_crashed", {"code": found[1]} if found[1] else {}),)


def _engine_process(text: str, at: int) -> tuple[Found, ...]:
    return (Notice("engine_dead"),) if _ENGINE_PROCESS.match(text, at) else ()


def _shard(text: str, at: int) -> tuple[Found, ...]:
    """Signal 15 is an orderly end."""
    found = _SHARD.match(text, at)
    return (Notice("process_crashed", {"code": f"-{found[1]}"}),) if found and found[1] != "15" else ()


def _killed(text: str, at: int) -> tuple[Found, ...]:
    tail = text[at : at + _REACH_CHARS]
    who = _KILLED.search(tail)
    if not who:
        return ()
    detail = {"own": str(int(_ENGINES.search(who[1]) is not None)), "limited": str(int("cgroup" in text[:at]))}
    resident = _RESIDENT.search(tail)
    if resident:
        detail["resident_bytes"] = text_of(float(resident[1]) * 1024)
    return (Notice("killed_for_memory", detail),)


def _unit(text: str, at: int) -> tuple[Found, ...]:
    """systemd names the unit, whose limit or whose host it was is not said."""
    own = _ENGINES.search(text[max(0, at - 120) : at]) is not None
    return (Notice("killed_for_memory", {"own": str(int(own))}),)


def _pool_too_small(text: str, at: int) -> tuple[Found, ...]:
    has, need = _POOL_HAS.match(text, at), _POOL_TOKENS.search(text[max(0, at - 120) : at])
    if not has:
        return ()
    return (Notice("does_not_fit", {"have_tokens": has[1], **({"need_tokens": need[1]} if need else {})}),)


def _little_free(text: str, at: int) -> tuple[Found, ...]:
    """Less is free at start than the engine was told to take: somebody else holds it."""
    tail = text[at : at + _REACH_CHARS]
    have, need = _FREE_AT_START.match(tail), _WANTED_AT_START.search(tail)
    if not have or not need:
        return ()
    sizes = {"have_bytes": size_bytes(have[1], "GiB"), "need_bytes": size_bytes(need[1], "GiB")}
    return (Notice("does_not_fit", {key: text_of(size) for key, size in sizes.items() if size is not None}),)


def _prefill(text: str, at: int) -> tuple[Found, ...]:
    found = _PREFILL.match(text, at)
    return (Notice("does_not_fit", {"need_tokens": found[1], "phase": "prefill"}),) if found else ()


def _device_full(text: str, at: int) -> tuple[Found, ...]:
    """ggml says the size before it: its buffers are allocated while a model is loaded."""
    asked = _ON_DEVICE.search(text[max(0, at - 120) : at])
    size = size_bytes(asked[1], asked[2]) if asked else None
    return (Notice("out_of_memory", {"phase": "start", **({} if size is None else {"asked_bytes": text_of(size)})}),)


def _any(literals: tuple[str, ...], engine: str, read: Reader) -> tuple[Phrase, ...]:
    return tuple(Phrase(literal, engine, read) for literal in literals)


PHRASES = (
    Phrase("Worker ", "", _worker),
    Phrase("Engine core proc ", "vllm", _engine_process),
    Phrase("Engine process (pid ", "vllm", _engine_process),
    *_any(
        (
            "Engine loop has died",
            "MQLLMEngine is already dead",
            "Background loop has errored already",
            "Engine background task failed",
        ),
        "vllm",
        says("engine_dead"),
    ),
    Phrase("Engine core initialization failed", "vllm", says("start_failed")),
    Phrase("EngineCore failed to start", "vllm", says("start_failed")),
    Phrase("Engine process failed to start", "vllm", says("start_failed")),
    Phrase("WorkerProc failed to start", "vllm", says("start_failed")),
    Phrase("WorkerProc initialization failed", "vllm", says("start_failed")),
    *_any(("eceived sigquit from a child proces", "SIGQUIT received. "), "sglang", says("process_crashed")),
    Phrase("Scheduler hit an exception", "sglang", says("process_crashed")),
    Phrase("hard process was signaled to shutdown with signal ", "tgi", _shard),
    *_any(("ShardCannotStart", "WebserverFailed", "ShardFailed"), "tgi", says("start_failed")),
    *_any(("failed to load model, '", "unable to load model"), "llamacpp", says("start_failed")),
    Phrase("ut of memory: Kill", "kernel", _killed),
    Phrase("OOMKilled", "", says("killed_for_memory", own="1", limited="1")),
    Phrase("maximum number of tokens that can be stored in KV cache (", "vllm", _pool_too_small),
    Phrase("Free memory on device", "vllm", _little_free),
    Phrase("Not enough memory to handle ", "tgi", _prefill),
    Phrase("Not enough memory. Please try to increase --mem-fraction-static", "sglang", says("does_not_fit")),
    Phrase("No enough gpu memory for runtime", "lmdeploy", says("does_not_fit")),
    Phrase("cudaMalloc failed: out of memory", "", _device_full),
    Phrase("CUDA runtime error: out of memory", "", says("out_of_memory")),
    *_any(
        (
            "an illegal memory access was encountered",
            "device-side assert triggered",
            "unspecified launch failure",
            "CUDA error: misaligned address",
            "CUBLAS_STATUS_EXECUTION_FAILED",
        ),
        "",
        says("device_error"),
    ),
    Phrase("ed with result 'oom-kill'", "", _unit),
    Phrase("CUDA error: out of memory", "", says("out_of_memory")),
)
