"""The writer of the step ring (docs/ring.md): a file in shared memory that shows what the scheduler does, step by step.

A slot is written twice, at the start of a step and at its end, so that a reader can tell a step that runs from one that
hangs, and the last steps survive the process. Both writes together cost about a microsecond. The request table is
renewed at most ten times a second. Sequence numbers at both ends of a slot and a checksum expose torn reads; on x86 and
ARM the interpreter's own overhead between two writes keeps their order, and the checksum catches the rest.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import struct
import zlib
from pathlib import Path

from ..request import Stage
from ..step import REQUEST_FIELDS, STEP_FIELDS
from .info import EngineInfo, Scalar
from .live import LiveRequests

MAGIC = b"GWRING01"
HEADER_BYTES = 4096
JSON_AT = 256
NEWEST_AT, GENERATION_AT = 64, 72
DEFAULT_SLOTS = 8192
DEFAULT_ROWS = 512
TABLE_EVERY_S = 0.1

_U64 = struct.Struct("<Q")
_TAIL = struct.Struct("<IIQ")  # crc, zero, seq
_ROW = struct.Struct(f"<Q{len(REQUEST_FIELDS) - 1}d")
_BEGUN = STEP_FIELDS.index("begun_at")
_ENDED = STEP_FIELDS.index("ended_at")
_UNITS = {"begun_at": "unix seconds", "ended_at": "unix seconds", "arrived_at": "unix seconds", "id": "hash"}
_IN_TABLE = (Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.REQUEUE)


def ring_directory(directory: str | os.PathLike[str] | None = None) -> Path:
    """Where rings lie: the argument, $GPUWATCH_RING_DIR, or /dev/shm/gpuwatch."""
    return Path(directory or os.environ.get("GPUWATCH_RING_DIR") or "/dev/shm/gpuwatch")  # noqa: S108


class RingWriter:
    """Writes one engine's ring. Creating it keeps an older file as `.prev`; OSError if that cannot be written."""

    def __init__(
        self,
        info: EngineInfo,
        live: LiveRequests,
        directory: str | os.PathLike[str] | None = None,
        *,
        slots: int = DEFAULT_SLOTS,
        rows: int = DEFAULT_ROWS,
        unix_ns: int,
        monotonic_ns: int,
    ) -> None:
        if slots < 2 or slots & (slots - 1):
            raise ValueError(f"slot count must be a power of two, got {slots}")
        self._live = live
        self._slots, self._rows = slots, rows
        self._fields = struct.Struct(f"<{len(info.step_fields)}d")
        self._slot_bytes = _U64.size + self._fields.size + _TAIL.size
        self._table_at = HEADER_BYTES + slots * self._slot_bytes
        size = self._table_at + rows * _ROW.size
        self.path = ring_directory(directory) / f"{_file_stem(info.engine)}-{info.rank}.ring"
        self._map = self._create(size, _header(info, self._slot_bytes, slots, rows, unix_ns, monotonic_ns))
        self._number = 0
        self._offset = HEADER_BYTES
        self._generation = 0
        self._table_due = 0.0

    def step_begun(self, record: list[float]) -> None:
        """Write the planned step into the next slot."""
        number = self._number + 1
        self._number = number
        self._offset = offset = HEADER_BYTES + ((number - 1) % self._slots) * self._slot_bytes
        seq = 2 * number - 1
        fields = self._fields.pack(*record)
        mapped = self._map
        end = offset + 8 + len(fields)
        mapped[offset + 8 : end] = fields
        _TAIL.pack_into(mapped, end, zlib.crc32(fields), 0, seq)
        _U64.pack_into(mapped, offset, seq)
        _U64.pack_into(mapped, NEWEST_AT, number)
        if record[_BEGUN] >= self._table_due:
            self.write_table(record[_BEGUN])

    def step_ended(self, record: list[float]) -> None:
        """Complete the slot of the step that runs."""
        if not self._number:
            return
        offset = self._offset
        seq = 2 * self._number
        fields = self._fields.pack(*record)
        mapped = self._map
        end = offset + 8 + len(fields)
        _U64.pack_into(mapped, offset, seq)
        mapped[offset + 8 : end] = fields
        _TAIL.pack_into(mapped, end, zlib.crc32(fields), 0, seq)

    def write_table(self, now: float) -> None:
        """Renew the request table; called between steps too, so that arrivals show while a step hangs."""
        self._table_due = now + TABLE_EVERY_S
        mapped, offset, size = self._map, self._table_at, _ROW.size
        self._generation += 1
        _U64.pack_into(mapped, GENERATION_AT, self._generation)
        rows = self._live.rows(self._rows)
        for request, hashed in rows:
            _ROW.pack_into(
                mapped, offset, hashed, request.arrived_at, request.stage, request.prompt_tokens,
                request.max_tokens, request.output_tokens, len(request.blocks), request.preemptions,
            )  # fmt: skip
            offset += size
        unused = self._rows - len(rows)
        if unused:
            mapped[offset : offset + unused * size] = bytes(unused * size)
        self._generation += 1
        _U64.pack_into(mapped, GENERATION_AT, self._generation)

    def close(self) -> None:
        """Unmap; the file stays, as the black box."""
        self._map.close()

    def _create(self, size: int, header: bytes) -> mmap.mmap:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".ring.tmp")
        with fresh.open("w+b") as file:
            file.truncate(size)
            mapped = mmap.mmap(file.fileno(), size)
        mapped[: len(header)] = header
        if self.path.exists():
            self.path.rename(self.path.with_suffix(".ring.prev"))
        fresh.rename(self.path)
        return mapped


def _header(info: EngineInfo, slot_bytes: int, slots: int, rows: int, unix_ns: int, monotonic_ns: int) -> bytes:
    described = _describe(info)
    fixed = struct.pack("<8sIIIII4xQQ", MAGIC, HEADER_BYTES, slot_bytes, slots, _ROW.size, rows, monotonic_ns, unix_ns)
    head = bytearray(HEADER_BYTES)
    head[: len(fixed)] = fixed
    head[48:64] = secrets.token_bytes(16)
    struct.pack_into("<I", head, 80, len(described))
    head[JSON_AT : JSON_AT + len(described)] = described
    return bytes(head)


def _describe(info: EngineInfo) -> bytes:
    """The JSON of the header; arguments that do not fit into the page are left out, limits never are."""
    named = {"model": info.model[:200], "version": info.version[:200], "fingerprint": info.fingerprint}
    facts: dict[str, Scalar] = {**named, **info.limits()}
    table = {
        "engine": info.engine[:200],
        "rank": info.rank,
        "pid": os.getpid(),
        "step": [{"name": n, "unit": _unit(n)} for n in info.step_fields],
        "request": [{"name": n, "unit": _unit(n)} for n in REQUEST_FIELDS],
        "info": facts,
    }
    for name, value in info.arguments.items():
        facts.setdefault(name, value)
        if len(json.dumps(table)) > HEADER_BYTES - JSON_AT - 64:
            del facts[name]
            break
    return json.dumps(table, separators=(",", ":")).encode()


def _unit(name: str) -> str:
    if name in _UNITS:
        return _UNITS[name]
    for word in ("seconds", "tokens", "blocks"):
        if word in name:
            return word
    return "tokens" if name == "kv_slots_unused" else "1"


def _file_stem(engine: str) -> str:
    """The engine's name as a file name: letters, digits, dot, dash and underscore only."""
    kept = "".join(c if c.isalnum() or c in "-_." else "_" for c in engine)[:80].lstrip(".")
    return kept or "engine"
