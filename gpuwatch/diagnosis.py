"""From a recording to a verdict: captures and capsules through the same pipeline as the live agent."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from .capsule import MAGIC, Capsule, CapsuleError, replay_ticks
from .config import Config
from .model import Transition, Verdict
from .pipeline import Pipeline
from .quantize import quantized
from .sources.capture import CaptureError, calls, capture_lines, read_capture

_HEAD_BYTES = 4096


def diagnose(source: str, config: Config) -> tuple[Verdict, list[str]]:
    """The verdict on a capture (file or `-`) or a capsule, and what qualifies it.

    Raises CaptureError or CapsuleError naming the file and the line or what is wrong.
    """
    if source != "-":
        kind = _kind(Path(source))
        if kind == "capsule":
            return replay_capsule(source)
        if kind != "capture":
            raise CaptureError(
                f"{source}: neither a capture nor a capsule; logs and single pages are not read yet"
                " (docs/capture.md says what a capture is)"
            )
    return _diagnose_capture(source, config)


def replay_capsule(path: str, each: Callable[[Transition], object] | None = None) -> tuple[Verdict, list[str]]:
    """Execute a capsule again, telling each transition; the verdict and what qualifies it. Raises CapsuleError."""
    capsule = Capsule.open(path)
    notes: list[str] = []
    changed = capsule.changed_rules()
    if changed:
        notes.append(f"judged by other versions of {', '.join(changed)} than when it was recorded")
    pipeline: Pipeline | None = None
    for tick, stepped in replay_ticks(capsule):
        pipeline = stepped
        if each is not None:
            for transition in tick.transitions:
                each(transition)
    if pipeline is None:
        raise CapsuleError(f"{path}: holds no calls")
    if any(event.what == "journal_cut" for history in pipeline.memory.values() for event in history.events):
        notes.append("the recording has a gap (a full disk): the verdict may differ from the one that was given")
    return pipeline.verdict(), notes


def transition_line(transition: Transition) -> str:
    """One line: when, what, which."""
    at = datetime.fromtimestamp(transition.at, UTC).strftime("%H:%M:%S")
    i = transition.incident
    return f"{at}  {transition.kind:<9} {i.severity:<6} {i.rule} on {i.subject.get('engine') or '-'}  {i.id}"


def _diagnose_capture(source: str, config: Config) -> tuple[Verdict, list[str]]:
    capture = read_capture(capture_lines(source), source)
    pipeline = Pipeline(config)
    for now, batches in calls(capture):
        pipeline.step(*quantized(now, batches))
    notes: list[str] = []
    if not capture.complete:
        notes.append(f"{source}: has no end record: the capture was cut")
    if capture.dropped:
        notes.append(f"{source}: {capture.dropped} blocks, rows or series could not be used")
    if capture.unknown:
        known = ", ".join(f"{what} × {n}" for what, n in capture.unknown.most_common(5))
        notes.append(f"{source}: skipped what is not known: {known}")
    return pipeline.verdict(), notes


def _kind(path: Path) -> str:
    """capsule, capture or unknown, from the first bytes. Raises CaptureError where the file cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head[: len(MAGIC)] == MAGIC:
            return "capsule"
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path) as inflated:
                head = inflated.read(_HEAD_BYTES)
    except (OSError, EOFError) as error:
        raise CaptureError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    return "capture" if head.lstrip()[:1] == b"{" else "unknown"
