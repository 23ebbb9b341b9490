"""The drawings: well-formed, small, true to the data, and harmless whatever their labels say."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import numpy as np

from gpuwatch.report.bars import bar_rows
from gpuwatch.report.chart import Chart, Line, Mark, TimeFrame, svg
from gpuwatch.report.strips import COLUMNS, strips
from tests.report import sample

FRAME = TimeFrame(0.0, 1800.0, ((600.0, 900.0),), (Mark(600.0, "onset", before=True), Mark(640.0, "detected")))


def chart(values: np.ndarray, label: str = "running") -> Chart:
    return Chart(
        "Running", "requests", (Line(label, "a", np.arange(len(values), dtype=float), values, True),), 5.0, "SLO"
    )


def test_thirty_minutes_of_noise_stay_small_and_well_formed() -> None:
    """1,800 points draw as XML of less than 25 kB."""
    drawn = svg(chart(np.random.default_rng(1).uniform(0, 60, 1800)), FRAME)
    ET.fromstring(drawn)
    assert len(drawn) < 25_000


def test_a_hole_in_the_data_is_a_hole_in_the_line() -> None:
    """A line with one gap is two strokes; no stroke bridges what is not known."""
    values = np.full(100, 10.0)
    values[40:60] = np.nan
    root = ET.fromstring(svg(chart(values), FRAME))
    line = next(p for p in root.iter("path") if p.get("class") == "line a")
    assert line.get("d", "").count("M") == 2


def test_the_incident_is_shaded_where_it_was() -> None:
    """The shade spans a third to a half of the axis, as the incident does."""
    root = ET.fromstring(svg(chart(np.ones(1800)), FRAME))
    shade = next(r for r in root.iter("rect") if r.get("class") == "shade")
    assert float(shade.get("x", "")) == 333.3
    assert abs(float(shade.get("width", "")) - 166.7) < 0.2


def test_hostile_labels_stay_text() -> None:
    """Markup in a label is a text in the drawing, not an element."""
    root = ET.fromstring(svg(chart(np.ones(10), sample.HOSTILE), FRAME))
    assert {e.tag for e in root.iter()} <= {"svg", "path", "rect", "text"}
    assert sample.HOSTILE in root.get("aria-label", "")


def test_strips_say_each_answer_where_it_held() -> None:
    """Pieces tile the axis in order, at most 240, and an answer out of no table is drawn as unknown."""
    data = sample.report()
    frame = TimeFrame(data.from_at, data.until_at)
    drawn = {s.question: s for s in strips(data.states, frame)}
    assert list(drawn) == ["GPU", "Rhythm", "Queue", "TTFT goes to", "Moved first"]
    assert [p.answer for p in drawn["Rhythm"].pieces] == ["steady", "recurrent"]
    for strip in drawn.values():
        assert len(strip.pieces) <= COLUMNS
        ends = [p.left + p.width for p in strip.pieces]
        assert all(abs(e - n.left) < 0.05 for e, n in zip(ends[:-1], strip.pieces[1:], strict=True))
    nasty = strips(sample.hostile().states[:1], frame)
    assert {p.colour for s in nasty if s.question == "TTFT goes to" for p in s.pieces} == {"unknown"}


def test_bars_show_who_waited_while_whom_was_served() -> None:
    """Rows in order of arrival; stages in order of time inside the axis; a request in flight is open."""
    data = sample.report()
    rows = bar_rows(data.requests, TimeFrame(data.from_at, data.until_at))
    assert [r.blocks[0].left for r in rows] == sorted(r.blocks[0].left for r in rows)
    assert [b.stage for b in rows[0].blocks] == ["queue", "prefill", "decode"]
    assert rows[-1].blocks[0].open
    assert all(b.left >= 0 and b.left + b.width <= 100.2 for r in rows for b in r.blocks)
