"""Ollama: its server's own lines and the access lines of its HTTP front end, plain, under compose, journald or docker.

Its runner prints llama.cpp's lines, which that reader takes. An access line is a finished request: its time is the whole
one, queue and loading of the model included.
"""

from __future__ import annotations

import re

from ..found import Found, Notice, Observed, Phrase, Stats, says
from ..numbers.numbers import NUMBER, duration_s

_TOOK = rf"(?:{NUMBER}(?:ns|µs|μs|us|ms|s|m|h))+"
_ACCESS = re.compile(
    rf"\[GIN\] \d{{4}}/\d\d/\d\d - \d\d:\d\d:\d\d \| +(\d{{3}}) \| +({_TOOK}) \| +[\w.:]{{2,64}} \| POST +"
    r'"(?:/api/(?:generate|chat|embed|embeddings)|/v1/(?:chat/completions|completions|embeddings|messages|responses))"'
)
_CODE = re.compile(r"exit status (\d{1,3})")
_SIGNALS = {"killed": "-9", "aborted": "-6", "segmentation fault": "-11", "terminated": "-15"}
_REACH_CHARS = 400


def _access(text: str, at: int) -> tuple[Found, ...]:
    """Look-ups of models and probes are no requests."""
    found = _ACCESS.match(text, at)
    if not found:
        return ()
    status, seconds = int(found[1]), duration_s(found[2])
    if status == 503:
        return (Notice("queue_full"),)
    if status >= 500:
        return (Notice("request_failed"),)
    said: tuple[Found, ...] = (Stats("ollama", counts={"req_finished_total": 1.0}),)
    return (*said, Observed({"e2e_seconds": seconds})) if status < 400 and seconds is not None else said


def _ended(kind: str, text: str, at: int) -> tuple[Found, ...]:
    tail = text[at : at + _REACH_CHARS]
    code = _CODE.search(tail)
    signal = next((number for word, number in _SIGNALS.items() if f"signal: {word}" in tail), "")
    if signal == "-15":
        return ()  # it was told to
    ended = code[1] if code else signal
    return (Notice(kind, {"code": ended} if ended else {}),)


def _terminated(text: str, at: int) -> tuple[Found, ...]:
    """While a model is loaded it is a start that failed."""
    loading = "error loading llama server" in text[max(0, at - _REACH_CHARS) : at]
    return _ended("start_failed" if loading else "process_crashed", text, at)


PHRASES = (
    Phrase("[GIN] ", "ollama", _access),
    Phrase("llama runner terminated", "ollama", lambda text, at: _ended("process_crashed", text, at)),
    Phrase("llama runner process has terminated", "ollama", _terminated),
    Phrase("llama runner process no longer running", "ollama", lambda text, at: _ended("process_crashed", text, at)),
    Phrase("timed out waiting for llama runner to start", "ollama", says("start_failed")),
    Phrase("maximum pending requests exceeded", "ollama", says("queue_full")),
)
