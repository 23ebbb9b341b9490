"""Has an engine profile itself: vLLM and SGLang start and stop the torch profiler over HTTP. On demand only.

The trace lands where the engine's own settings say, on its disk: nothing of it passes through here. While it records, an
engine is slower, and writing the file may stop it for seconds: never done automatically.
"""

from __future__ import annotations

import threading
from urllib.parse import urlsplit

START, STOP = "/start_profile", "/stop_profile"
STOP_LIMIT_S = 120.0
"""Writing a trace of seconds takes up to minutes."""


class EngineProfileError(Exception):
    """The engine did not profile; the message says what it needs."""


def profile_engine(url: str, seconds: float) -> str:
    """Start, wait, stop; says what to look for. Raises EngineProfileError."""
    import httpx

    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise EngineProfileError(f"{url}: not an http:// address")
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        with httpx.Client(timeout=10.0) as client:
            _ask(client, root + START)
            try:
                threading.Event().wait(seconds)
            finally:  # whatever happens here, it is not left running there
                _ask(client, root + STOP, STOP_LIMIT_S)
    except httpx.HTTPError as error:
        raise EngineProfileError(f"{url}: {type(error).__name__}: {error}") from error
    return (
        f"{url} profiled itself for {seconds:g} s. The trace is on its disk (vLLM: torch_profiler_dir, SGLang: "
        "SGLANG_TORCH_PROFILER_DIR or /tmp): gpuwatch profile TRACE summarises it"
    )


def _ask(client: object, url: str, limit_s: float = 10.0) -> None:
    answer = client.post(url, timeout=limit_s)  # type: ignore[attr-defined]
    if answer.status_code in (404, 405):
        raise EngineProfileError(
            f"{url}: HTTP {answer.status_code}: the engine was started without a profiler; vLLM needs "
            """--profiler-config '{"profiler": "torch", "torch_profiler_dir": "/abs/dir"}' (before 0.13: the environment """
            "variable VLLM_TORCH_PROFILER_DIR), SGLang offers it always, others have none"
        )
    if answer.status_code >= 400:
        raise EngineProfileError(f"{url}: HTTP {answer.status_code}")
