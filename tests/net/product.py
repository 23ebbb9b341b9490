"""All that the net asks of the product, in the net's own words: the only module here that imports it.

Where the product moves, this file follows, and nothing else in tests/net does. A material is concluded by
`Pipeline.conclude` where there is one, else by the clues, which judge after the pipeline.
"""

from __future__ import annotations

import io
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpuwatch.pipeline
from engine_shim.demand.scenario import parse_scenario
from engine_shim.simulation.assemble import simulate
from gpuwatch.config import Config, EngineTarget
from gpuwatch.diagnose import MaterialError, examine
from gpuwatch.diagnose.content import Content
from gpuwatch.diagnose.examine import read_source
from gpuwatch.diagnose.material import Material
from gpuwatch.diagnose.material import calls as calls_on_grid
from gpuwatch.diagnose.recognise import kind_of
from gpuwatch.incidents.verdict import text, to_json
from gpuwatch.model import Incident, Transition, Verdict
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.capsule import Capsule, CapsuleError, CapsuleWriter, replay_ticks
from gpuwatch.recording.quantize import quantized
from gpuwatch.sources.files.capture import CaptureError, calls, read_capture

try:
    from gpuwatch import clues
except ImportError:  # there is one judge
    clues = None  # type: ignore[assignment]

Call = tuple[float, tuple[Any, ...]]
REFUSED = (MaterialError, CaptureError, CapsuleError)
"""What a source is refused with: a sentence that names it."""
LONGEST_S = 4 * 3600
"""So many calls, one a second, are judged once more at the end."""


class Played(NamedTuple):
    """What came of a material: transitions, the pipeline's verdict before the end was known, and the one after it."""

    transitions: tuple[Transition, ...]
    running: Verdict
    concluded: Verdict


def world(file: Path, device: str, seed: int, mode: str, duration_s: float = 0.0) -> bytes:
    """The capture of a simulated scenario. ValueError where the scenario and the device do not go together."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    if duration_s:
        table["duration_s"] = duration_s
    scenario = parse_scenario(table, file=file.name, stem=file.stem, device=device)
    out = io.BytesIO()
    simulate(scenario, out, device=device, seed=seed, mode=mode)
    return out.getvalue()


def calls_of_capture(stream: bytes) -> Iterator[Call]:
    """The calls that a pipeline gets from a capture."""
    for now, batches in calls(read_capture(io.BytesIO(stream))):
        yield now, tuple(batches)


def calls_of_file(path: Path, engine: str = "engine") -> Iterator[Call]:
    """The calls that a pipeline gets from a log, a page or a table. MaterialError for what is none."""
    material = Material(engine)
    content = Content(str(path))
    read_source(content, kind_of(content.head()), material)
    return calls_on_grid(material.items)


def played(given: Iterable[Call], each: Callable[[float, Pipeline], object] | None = None) -> Played:
    """Step through the calls as the live agent does, then conclude. `each` is called before each step with its time."""
    pipeline = Pipeline(Config())
    transitions: list[Transition] = []
    kept: deque[Call] = deque(maxlen=LONGEST_S)
    for call in given:
        exact = quantized(*call)
        if each is not None:
            each(exact[0], pipeline)
        transitions += pipeline.step(*exact).transitions
        kept.append(exact)
    running = pipeline.verdict()
    return Played(tuple(transitions), running, _concluded(pipeline, kept))


def _concluded(pipeline: Pipeline, kept: Sequence[Call]) -> Verdict:
    conclude = getattr(pipeline, "conclude", None)
    if conclude is not None:
        conclude(kept[-1][0])
        return pipeline.verdict()
    return clues.judge(kept, pipeline.verdict(), pipeline.config)


def has_two_judges() -> bool:
    """Whether clues judge apart from the pipeline."""
    return clues is not None and not hasattr(gpuwatch.pipeline.Pipeline, "conclude")


def classes_of_clues(given: Iterable[Call]) -> set[tuple[str, str]]:
    """(severity, class) of what the clues name on their own."""
    from gpuwatch.clues.sighting import gather
    from gpuwatch.clues.weigh import candidates, weighed

    sighting = gather([quantized(*call) for call in given], Config())
    return {(one.clue.severity, one.clue.rule) for one in weighed(candidates(sighting), sighting)}


def diagnosed(sources: Sequence[Path], engine: str = "") -> Verdict:
    """The verdict of `gpuwatch diagnose`. Raises one of REFUSED."""
    return examine([str(path) for path in sources], _config(engine)).verdict


def everything_of(verdict: Verdict) -> str:
    """All words and numbers of its incidents: as printed, and whole, since the screen shows a part."""
    return f"{text(verdict)}\n{to_json(verdict).decode()}"


def _config(engine: str) -> Config:
    return Config(engines=(EngineTarget(url="http://127.0.0.1:1", name=engine),)) if engine else Config()


def write_capsule(path: Path, given: Iterable[Call], from_s: float = 0.0) -> Path:
    """Record the calls. `from_s`: those before it, seconds from the first, are in the snapshot only."""
    pipeline = Pipeline(Config())
    begin: float | None = None
    writer: CapsuleWriter | None = None
    for call in given:
        exact = quantized(*call)
        begin = exact[0] if begin is None else begin
        if writer is None and exact[0] >= begin + from_s:
            snapshot = pipeline.snapshot() if from_s else b""
            writer = CapsuleWriter(path, Config(), clock="virtual", snapshot=snapshot)
        if writer is not None:
            writer.append(*exact)
        elif from_s:
            pipeline.step(*exact)
    assert writer is not None, "the recording is shorter than what was to be left out"
    return writer.close()


def replayed(path: Path) -> tuple[float, tuple[Transition, ...], Verdict]:
    """The time of a capsule's first call, its transitions and its verdict when it is executed again. CapsuleError."""
    transitions: list[Transition] = []
    begin, last = 0.0, None
    for tick, pipeline in replay_ticks(Capsule.open(path)):
        begin = begin or tick.now
        transitions += tick.transitions
        last = pipeline
    if last is None:
        raise CapsuleError(f"{path}: holds no calls")
    return begin, tuple(transitions), last.verdict()


def subject_of(incident: Incident) -> str:
    """Who is sick, in one word."""
    it: dict[str, Any] = incident.subject
    names = [str(it.get("engine") or "")]
    names += [f"rank {it['rank']}"] if it.get("rank") else []
    names += [str(it[key])[:12] for key in ("gpu", "host", "pool") if it.get(key)]
    return " ".join(name for name in names if name)
