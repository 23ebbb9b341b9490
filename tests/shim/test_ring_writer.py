"""The step ring as docs/ring.md has it, read back by a reader written from that page alone."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from engine_shim.request import Stage
from engine_shim.step import REQUEST_FIELDS, STEP_FIELDS
from engine_shim.telemetry import LiveRequests
from engine_shim.telemetry.ring import RingWriter, ring_directory
from tests.shim.telling import START, info, record


class Reader:
    """Reads the bytes of a ring file by the offsets of docs/ring.md."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        assert data[:8] == b"GWRING01"
        header, self.slot_bytes, self.slots, self.row_bytes, self.rows = struct.unpack_from("<IIIII", data, 8)
        assert header == 4096
        self.monotonic_ns, self.unix_ns = struct.unpack_from("<QQ", data, 32)
        self.instance = data[48:64]
        (self.newest,) = struct.unpack_from("<Q", data, 64)
        (self.generation,) = struct.unpack_from("<Q", data, 72)
        (length,) = struct.unpack_from("<I", data, 80)
        self.facts: dict[str, Any] = json.loads(data[256 : 256 + length])

    def slot(self, number: int) -> tuple[dict[str, float], bool] | None:
        """The fields of step `number` and whether it has ended; None where the slot is torn or another step's."""
        at = 4096 + (number - 1) % self.slots * self.slot_bytes
        names = [f["name"] for f in self.facts["step"]]
        fields = self.data[at + 8 : at + 8 + 8 * len(names)]
        (first,) = struct.unpack_from("<Q", self.data, at)
        crc, zero, last = struct.unpack_from("<IIQ", self.data, at + 8 + len(fields))
        if first != last or first not in (2 * number - 1, 2 * number) or crc != zlib.crc32(fields) or zero:
            return None
        return dict(zip(names, struct.unpack(f"<{len(names)}d", fields), strict=True)), first == 2 * number

    def table(self) -> list[dict[str, float]]:
        """The live request table."""
        names = [f["name"] for f in self.facts["request"]]
        at = 4096 + self.slots * self.slot_bytes
        rows = [
            struct.unpack_from(f"<Q{len(names) - 1}d", self.data, at + i * self.row_bytes) for i in range(self.rows)
        ]
        return [dict(zip(names, row, strict=True)) for row in rows if row[0]]


def writer(folder: Path, live: LiveRequests | None = None, **more: Any) -> RingWriter:
    return RingWriter(info(), live or LiveRequests(b"s"), folder, unix_ns=5_000, monotonic_ns=7_000, **more)


def test_the_header_describes_the_rest(tmp_path: Path):
    ring = writer(tmp_path, slots=8, rows=4)
    read = Reader(ring.path.read_bytes())
    assert ring.path.name == "shim-0.ring"
    assert (read.slots, read.rows, read.unix_ns, read.monotonic_ns) == (8, 4, 5_000, 7_000)
    assert [f["name"] for f in read.facts["step"]] == list(STEP_FIELDS)
    assert [f["name"] for f in read.facts["request"]] == list(REQUEST_FIELDS)
    assert len(read.data) == 4096 + 8 * read.slot_bytes + 4 * read.row_bytes
    limits = {"model": "7b", "max_num_seqs": 8, "kv_total_blocks": 100, "block_tokens": 16}
    assert limits.items() <= read.facts["info"].items()
    assert read.newest == 0
    ring.close()


def test_a_step_shows_when_it_begins_and_again_when_it_ends(tmp_path: Path):
    ring = writer(tmp_path)
    row = record(step=1, begun_at=START, decode_tokens=7)
    ring.step_begun(row)
    read = Reader(ring.path.read_bytes())
    assert read.newest == 1
    fields, ended = read.slot(1) or ({}, True)
    assert (fields["decode_tokens"], fields["ended_at"], ended) == (7, 0, False)
    row[STEP_FIELDS.index("ended_at")] = START + 0.25
    ring.step_ended(row)
    fields, ended = Reader(ring.path.read_bytes()).slot(1) or ({}, False)
    assert (fields["ended_at"], ended) == (START + 0.25, True)
    ring.close()


def test_the_ring_wraps(tmp_path: Path):
    """The newest `slots` steps are there, older ones are recognised as gone."""
    ring = writer(tmp_path, slots=8)
    for n in range(1, 21):
        row = record(step=n, begun_at=START + n, ended_at=START + n + 1)
        ring.step_begun(row)
        ring.step_ended(row)
    read = Reader(ring.path.read_bytes())
    assert read.newest == 20
    for n in range(13, 21):
        slot = read.slot(n)
        assert slot is not None
        assert slot[0]["step"] == n
    assert read.slot(12) is None
    ring.close()


@pytest.mark.parametrize("at", [8, 60, 8 + 8 * len(STEP_FIELDS)])
def test_a_torn_slot_is_seen(tmp_path: Path, at: int):
    """Whatever byte of a slot is another step's, sequence or checksum tells."""
    ring = writer(tmp_path, slots=8)
    row = record(step=1, begun_at=START, ended_at=START + 1)
    ring.step_begun(row)
    ring.step_ended(row)
    data = bytearray(ring.path.read_bytes())
    data[4096 + at] ^= 0xFF
    assert Reader(bytes(data)).slot(1) is None
    ring.close()


def test_every_write_order_leaves_a_torn_slot_visible(tmp_path: Path):
    """Stop between any two stores of start and end: a reader sees a whole state or none, never a mixture."""
    seen = []

    class Watched(RingWriter):
        """Looks at the file after each store."""

        def _create(self, size: int, header: bytes) -> Any:
            self.inner = super()._create(size, header)
            return Spy(self.inner, seen)

    live = LiveRequests(b"s")
    ring = Watched(info(), live, tmp_path, slots=2, rows=1, unix_ns=1, monotonic_ns=1)
    for n in range(1, 6):
        row = record(step=n, begun_at=START, decode_tokens=n)
        ring.step_begun(row)
        row[STEP_FIELDS.index("ended_at")] = START + n
        ring.step_ended(row)
    assert len(seen) > 20
    for data in seen:
        read = Reader(data)
        for n in range(1, 6):
            slot = read.slot(n)
            if slot is not None:
                fields, ended = slot
                assert fields["decode_tokens"] == fields["step"] == n
                assert fields["ended_at"] == (START + n if ended else 0)


class Spy(bytearray):
    """A mapping that keeps a copy of itself after each assignment."""

    def __init__(self, inner: Any, seen: list[bytes]) -> None:
        super().__init__(inner[:])
        self.seen = seen

    def __setitem__(self, key: Any, value: Any) -> None:
        self.seen.append(bytes(self))
        super().__setitem__(key, value)
        self.seen.append(bytes(self))

    def close(self) -> None:
        """As a mapping."""


def test_a_restart_keeps_the_black_box(tmp_path: Path):
    """The old file becomes `.prev`; the new one has another instance and no steps."""
    old = writer(tmp_path)
    old.step_begun(record(step=1, begun_at=START))
    old.close()
    new = writer(tmp_path)
    previous, current = Reader((tmp_path / "shim-0.ring.prev").read_bytes()), Reader(new.path.read_bytes())
    assert (previous.newest, current.newest) == (1, 0)
    assert previous.instance != current.instance
    assert not list(tmp_path.glob("*.tmp"))
    new.close()


def test_the_table_has_the_requests_in_flight(tmp_path: Path):
    live = LiveRequests(b"s")
    ring = writer(tmp_path, live)
    from engine_shim.request import Request

    waiting, holding = Request("w", 50, 20, START, 20), Request("h", 100, 30, START - 5, 30)
    waiting.stage, holding.stage = Stage.QUEUE, Stage.DECODE
    holding.blocks, holding.output_tokens, holding.preemptions = [1, 2, 3], 9, 1
    live.stage_changed(waiting, Stage.QUEUE)
    live.stage_changed(holding, Stage.PREFILL)
    ring.step_begun(record(begun_at=START))
    read = Reader(ring.path.read_bytes())
    assert read.generation == 2
    rows = {row["prompt_tokens"]: row for row in read.table()}
    assert (rows[50]["stage"], rows[100]["stage"]) == (1, 3)
    assert (rows[100]["blocks"], rows[100]["generated_tokens"], rows[100]["preemptions"]) == (3, 9, 1)
    assert all(1 <= row["id"] < 2**52 for row in rows.values())
    live.finished(holding)
    ring.step_begun(record(begun_at=START + 0.05))
    assert len(Reader(ring.path.read_bytes()).table()) == 2  # not more than ten times a second
    ring.step_begun(record(begun_at=START + 0.11))
    assert len(Reader(ring.path.read_bytes()).table()) == 1
    ring.close()


def test_a_full_table_keeps_the_head_of_the_queue_and_the_largest_holders(tmp_path: Path):
    from engine_shim.request import Request

    live = LiveRequests(b"s")
    for n in range(100):
        request = Request(f"w{n}", 10, 10, START + n, 10)
        live.stage_changed(request, Stage.QUEUE)
        holder = Request(f"h{n}", 10, 10, START, 10, blocks=list(range(n)))
        live.stage_changed(holder, Stage.PREFILL)
    rows = [request for request, _ in live.rows(32)]
    assert [r.id for r in rows[:16]] == [f"w{n}" for n in range(16)]
    assert sorted(len(r.blocks) for r in rows[16:]) == list(range(84, 100))


def test_hostile_names_stay_inside_the_directory(tmp_path: Path):
    ring = RingWriter(info(engine="../../etc/passwd"), LiveRequests(b"s"), tmp_path, unix_ns=1, monotonic_ns=1)
    assert ring.path.parent == tmp_path
    ring.close()


def test_long_arguments_do_not_burst_the_header(tmp_path: Path):
    arguments: dict[str, Any] = {f"argument_{n}": "x" * 100 for n in range(100)}
    ring = RingWriter(info(arguments=arguments), LiveRequests(b"s"), tmp_path, unix_ns=1, monotonic_ns=1)
    assert Reader(ring.path.read_bytes()).facts["info"]["max_num_seqs"] == 8
    ring.close()


def test_the_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPUWATCH_RING_DIR", "/somewhere")
    assert ring_directory() == Path("/somewhere")
    assert ring_directory("/else") == Path("/else")


def test_slots_are_a_power_of_two(tmp_path: Path):
    with pytest.raises(ValueError, match="power of two, got 100"):
        writer(tmp_path, slots=100)
