"""Recordings of gpuwatch's own: capsules are executed again, captures are read as the live sources read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from ..model import Batch, Transition, Verdict
from ..recording.capsule import Capsule, CapsuleError, replay_ticks
from ..sources.files.capture import Capture, calls, read_capture
from .content import Content
from .material import Call, Material


def replay_capsule(path: str, each: Callable[[Transition], object] | None = None) -> tuple[Verdict, list[str]]:
    """Execute a capsule again, telling each transition; the verdict and what qualifies it. Raises CapsuleError."""
    capsule = Capsule.open(path)
    notes: list[str] = []
    changed = capsule.changed_rules()
    if changed:
        notes.append(f"judged by other versions of {', '.join(changed)} than when it was recorded")
    pipeline = None
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


def capsule_material(content: Content, material: Material) -> None:
    """A capsule among other sources: its batches, without its snapshot. Raises CapsuleError."""
    times = []
    for now, batches in Capsule.open(content.path).calls():
        material.add(now, batches)
        times.append(now)
    material.saw(content.name, "capsule", times)


def open_capture(content: Content) -> Capture:
    """The capture, its header read. Raises CaptureError naming the line."""
    return read_capture(content.lines(), content.name)


def capture_calls(capture: Capture, material: Material) -> Iterator[Call]:
    """The calls of a lone capture as they come: its own grid, so that a pipe from a running simulation is followed."""
    times: list[float] = []
    for now, batches in calls(capture):
        times += [batch.received_at for batch in batches if batch.role in ("engine", "steps")]
        yield now, tuple(batches)
    _seen(capture, material, times)


def capture_material(content: Content, material: Material) -> None:
    """A capture among other sources. Raises CaptureError naming the line."""
    capture = open_capture(content)
    items: list[tuple[float, Batch]] = list(capture)
    material.items += items
    _seen(capture, material, [t for t, batch in items if batch.role in ("engine", "steps")])


def _seen(capture: Capture, material: Material, times: list[float]) -> None:
    source = capture.name
    material.saw(source, f"capture by {capture.header.producer or 'an unnamed producer'}", times)
    if not capture.complete:
        material.note(f"{source}: has no end record: the capture was cut")
    if capture.dropped:
        material.note(f"{source}: {capture.dropped} blocks, rows or series could not be used")
    if capture.unknown:
        known = ", ".join(f"{what} × {n}" for what, n in capture.unknown.most_common(5))
        material.note(f"{source}: skipped what is not known: {known}")
