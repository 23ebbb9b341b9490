"""A tiny writer of step rings, made from docs/ring.md alone: what the reader is tested against."""

import json
import os
import struct
import zlib
from pathlib import Path

STEP = (
    "step", "begun_at", "ended_at", "prefill_tokens", "decode_tokens", "longest_prefill_tokens", "running", "waiting",
    "waiting_fit", "head_wait_seconds", "head_need_blocks", "stop_reason", "kv_used_blocks", "kv_total_blocks",
    "kv_cached_blocks", "kv_reserved_blocks", "kv_slots_unused", "arrived_total", "finished_total", "aborted_total",
    "rejected_total", "preempted_total", "prompt_tokens_total", "generated_tokens_total", "recomputed_tokens_total",
    "cached_tokens_total",
)  # fmt: skip
OTHERS = ("waiting_capacity", "waiting_deferred", "prefix_query_tokens_total", "prefix_hit_tokens_total")
"""Fields that the bundled engine does not write and others may."""
REQUEST = ("id", "arrived_at", "stage", "prompt_tokens", "max_tokens", "generated_tokens", "blocks", "preemptions")


class TinyRing:
    """Writes one ring file. `fields` may leave out or add step fields."""

    def __init__(
        self, path: Path, *, slots=16, rows=4, fields=STEP + OTHERS, instance=b"i" * 16, info=None, **described
    ):
        self.path, self.slots, self.fields = path, slots, fields
        self.slot_bytes = 24 + 8 * len(fields)
        told = {
            "engine": "e", "rank": 0, "pid": 1, "step": [{"name": n, "unit": "1"} for n in fields],
            "request": [{"name": n, "unit": "1"} for n in REQUEST],
            "info": info or {"model": "tiny", "block_tokens": 16, "kv_total_blocks": 100}, **described,
        }  # fmt: skip
        text = json.dumps(told).encode()
        head = bytearray(4096)
        struct.pack_into(
            "<8sIIIII4xQQ16s", head, 0, b"GWRING01", 4096, self.slot_bytes, slots, 64, rows, 1, 2, instance
        )
        struct.pack_into("<I", head, 80, len(text))
        head[256 : 256 + len(text)] = text
        if path.exists():
            path.rename(f"{path}.prev")
        fresh = path.with_name(path.name + ".tmp")
        fresh.write_bytes(bytes(head) + bytes(self.slot_bytes * slots + 64 * rows))
        fresh.rename(path)
        self.file = os.open(path, os.O_RDWR)
        self.table_at = 4096 + self.slot_bytes * slots
        self.number = 0

    def close(self):
        os.close(self.file)

    def put(self, at, raw):
        os.pwrite(self.file, raw, at)

    def begin(self, **values):
        """Write the start of the next step."""
        self.number += 1
        self._slot(2 * self.number - 1, values)
        self.put(64, struct.pack("<Q", self.number))

    def end(self, **values):
        """Complete the step."""
        self._slot(2 * self.number, values)

    def step(self, **values):
        """A whole step; `step`, times and totals are filled in unless given."""
        n = self.number + 1
        defaults = {
            "step": n, "begun_at": 1000.0 + n, "ended_at": 1000.5 + n, "kv_used_blocks": 40, "kv_total_blocks": 100,
            "kv_cached_blocks": 10, "kv_reserved_blocks": 5, "kv_slots_unused": 64, "running": 3, "waiting": 1,
            "generated_tokens_total": 10 * n,
        }  # fmt: skip
        self.begin(**{**defaults, **values, "ended_at": 0})
        self.end(**{**defaults, **values})

    def tear(self, n=None):
        """Damage the payload of slot `n` (default: the newest), leaving its numbers as they are."""
        at = 4096 + (((n or self.number) - 1) % self.slots) * self.slot_bytes
        self.put(at + 16, b"\xff\x01")

    def table(self, rows, generation):
        """Write the request table under a generation number."""
        self.put(72, struct.pack("<Q", generation))
        raw = b"".join(struct.pack("<Q7d", *row) for row in rows)
        self.put(self.table_at, raw.ljust(64 * 4, b"\0"))

    def _slot(self, seq, values):
        raw = struct.pack(f"<{len(self.fields)}d", *(values.get(n, 0.0) for n in self.fields))
        at = 4096 + ((self.number - 1) % self.slots) * self.slot_bytes
        self.put(at, struct.pack("<Q", seq) + raw + struct.pack("<IIQ", zlib.crc32(raw), 0, seq))


def write_steps(path, count):
    """Write `count` steps as fast as possible: for a process of its own."""
    ring = TinyRing(path, slots=64)
    for _ in range(count):
        ring.step(begun_at=1009.0, ended_at=1009.1)
    ring.close()
