"""Damaged input of every kind: each reader either reads what is left or refuses with its own error."""

import asyncio
import multiprocessing
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.catalog import check_value
from gpuwatch.model import Subject
from gpuwatch.sources.files.capture import CaptureError, calls, read_capture
from gpuwatch.sources.gpu.dcgm import DcgmPage
from gpuwatch.sources.page.engine_page import CutPageError, EnginePage, UnknownPageError
from gpuwatch.sources.ring.ring_file import RingError
from gpuwatch.sources.ring.steps import StepsSource
from tests.sources.ring_writer import TinyRing, write_steps
from tests.sources.stub_server import HandClock

CAPTURES = Path(__file__).parent.parent / "captures"
PAGES = [path.read_bytes() for path in sorted(CAPTURES.glob("*.txt"))]
GPU = b"".join(
    b'DCGM_FI_DEV_%s{gpu="0",UUID="GPU-a",modelName="H100"} %d\n' % (name, i)
    for i, name in enumerate((b"SM_CLOCK", b"POWER_USAGE", b"GPU_UTIL", b"FB_USED", b"FB_FREE", b"XID_ERRORS"))
)
CAPTURE = (
    b'{"gpuwatch_capture":1,"t":1.0,"engine":"e"}\n'
    b'{"t":1.0,"src":"info","labels":{"model":"m"}}\n'
    b'{"t":2.0,"src":"steps","cols":{"begun_at":[1.0],"ended_at":[1.5],"running":[3]},"open":{"begun_at":1.9}}\n'
    b'{"t":2.0,"src":"readings","subject":{"gpu":"g"},"at":[2.0],"cols":{"gpu_power_watts":[1]}}\n'
    b'{"t":3.0,"src":"spans","cols":{"request":["a"],"stage":["queue"],"start":[1],"end":[2]}}\n'
    b'{"t":3.0,"src":"end"}\n'
)


@st.composite
def damaged(draw, whole):
    """`whole` with a few bytes replaced, removed, repeated or cut off."""
    text = bytearray(draw(whole))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(len(text) - 1, 0)))
        length = draw(st.integers(0, 40))
        piece = draw(st.binary(max_size=8) | st.sampled_from([b"\n", b'"', b"{", b"NaN", b" -1\n", b"\\", b"9" * 400]))
        text[at : at + length] = piece
    return bytes(text)


@given(st.lists(damaged(st.sampled_from(PAGES)) | st.sampled_from(PAGES), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_damaged_engine_pages(bodies):
    """Whatever comes, one after the other: no other error, and no value that the catalogue calls impossible."""
    page = EnginePage("e")
    for at, body in enumerate(bodies):
        try:
            report = page.read(body, float(at))
        except (UnknownPageError, CutPageError):
            continue
        for frame in report.frames:
            assert all(check_value(n, v) for n, v in zip(frame.names, frame.values[0].tolist(), strict=True))
        for h in report.histograms:
            assert list(h.cumulative) == sorted(h.cumulative)
            assert len(h.cumulative) == len(h.bounds)


@given(st.lists(damaged(st.just(GPU)), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_damaged_gpu_pages(bodies):
    page = DcgmPage()
    for at, body in enumerate(bodies):
        for frame in page.read(body, float(at)).frames:
            assert all(check_value(n, v) for n, v in zip(frame.names, frame.values[0].tolist(), strict=True))


@given(damaged(st.just(CAPTURE)))
@settings(max_examples=200, deadline=None)
def test_damaged_captures(text):
    try:
        for _ in calls(read_capture(text.splitlines(keepends=True))):
            pass
    except CaptureError:
        return  # refused


@pytest.fixture(scope="module")
def ring_bytes():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e-0.ring"
        ring = TinyRing(path, slots=8)
        for _ in range(5):
            ring.step()
        ring.begin(begun_at=1009.0)
        ring.table([(7, 1000.0, 1, 512, 64, 0, 0, 2)], 2)
        ring.close()
        return path.read_bytes()


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_rings(ring_bytes, data):
    """Bytes of header, slots and table are changed under the reader: it counts, or refuses, and never believes."""
    text = bytearray(ring_bytes)
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, 90) | st.integers(256, 700) | st.integers(4096, len(text) - 1))
        text[at : at + 8] = data.draw(st.binary(min_size=1, max_size=8))
    text = text[: len(text) - data.draw(st.sampled_from([0, 0, 0, 1, 500]))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "e-0.ring"
        path.write_bytes(bytes(text))
        source = StepsSource(path, Subject(engine="e"), HandClock(1010.0))
        try:
            for _ in range(3):
                batch = asyncio.run(source.poll(1010.0))
                for frame in batch.frames:
                    assert frame.values.shape == (len(frame.at), len(frame.names))
        except RingError:
            return  # refused
        finally:
            asyncio.run(source.aclose())


def test_a_reader_survives_a_writer_that_never_rests(tmp_path):
    """A real process writes as fast as it can: every step is read once, in order, or counted as lost."""
    path = tmp_path / "e-0.ring"
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=write_steps, args=(path, 3000))
    writer.start()
    source, numbers, lost = StepsSource(path, Subject(engine="e"), HandClock(1010.0), optional=True), [], 0
    while writer.is_alive():
        batch = asyncio.run(source.poll(1010.0))
        lost += batch.dropped if numbers else 0  # what was torn before the first step is not of this count
        numbers += [n for f in batch.frames for n in f.values[:, f.names.index("steps_total")].tolist()]
    for _ in range(3):
        batch = asyncio.run(source.poll(1010.0))
        numbers += [n for f in batch.frames for n in f.values[:, f.names.index("steps_total")].tolist()]
        lost += batch.dropped
    writer.join()
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 3000
    first = int(numbers[0])
    assert len(numbers) + lost == 3000 - first + 1
