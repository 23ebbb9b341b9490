"""A small batch server in virtual time, whose telemetry follows from its mechanism.

Requests come at random (seeded), wait in one queue, are admitted where a batch slot and the KV blocks of their prompt and
answer are free, prefill at a shared rate, and decode at a rate each. Under `fifo` admission the head closes the door when
it does not fit; under `bypass` whoever fits goes ahead. Nothing is preempted: blocks are taken whole. Time moves in fifths
of a second; tokens per second, blocks of 16 tokens.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np

from ..config import Config
from ..model import Floats
from .world import START, InFlight, Sees, World, instants

STEP_S = 0.2
BLOCK_TOKENS = 16
NO_BLOCKS, BATCH_FULL, QUEUE_EMPTY = 1.0, 2.0, 0.0
_RING_ONLY = ("waiting_fit", "head_wait_seconds", "head_need_blocks", "admission_stop_reason", "step_seconds",
    "step_prefill_tokens", "step_decode_tokens", "step_longest_prefill_tokens", "steps_total", "kv_used_blocks")  # fmt: skip


class Load(NamedTuple):
    """A stream of requests: Poisson arrivals, lengths uniform between two bounds, from and until seconds of the world."""

    rate_per_s: float
    prompt_tokens: tuple[int, int] = (100, 300)
    output_tokens: tuple[int, int] = (100, 200)
    from_s: float = 0.0
    until_s: float = math.inf


class _Request:
    def __init__(self, id: int, arrived_at: float, prompt_tokens: int, output_tokens: int) -> None:
        self.id = id
        self.arrived_at = arrived_at
        self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens
        self.blocks = math.ceil((prompt_tokens + output_tokens) / BLOCK_TOKENS)
        self.prefill_left, self.decode_left = float(prompt_tokens), float(output_tokens)
        self.admitted_at = self.first_token_at = math.nan


class ToyEngine(World):
    """A world that a toy batch server fills. `speed` scales both rates: a slow device; `hung` stops it altogether."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        gpu: str = "",
        sees: Sees = "ring",
        seed: int = 1,
        admission: Literal["fifo", "bypass"] = "fifo",
        max_num_seqs: int = 32,
        pool_blocks: int = 2000,
        prefill_tokens_per_s: float = 20_000.0,
        decode_tokens_per_s: float = 40.0,
        spans: bool = True,
    ) -> None:
        super().__init__(config, gpu=gpu, sees=sees, hz=round(1 / STEP_S))
        self.admission = admission
        self.max_num_seqs, self.pool_blocks = max_num_seqs, pool_blocks
        self.prefill_tokens_per_s, self.decode_tokens_per_s = prefill_tokens_per_s, decode_tokens_per_s
        self.spans = spans
        self.speed, self.hung = 1.0, False
        self.waiting: list[_Request] = []
        self.running: list[_Request] = []
        self.totals = dict.fromkeys(("arrived", "finished", "prompt", "generated", "steps"), 0.0)
        self._random = random.Random(seed)
        self._due: list[tuple[float, Load]] = []
        self.says(max_num_seqs=str(max_num_seqs), kv_block_tokens=str(BLOCK_TOKENS))
        self.says(kv_capacity_tokens=str(pool_blocks * BLOCK_TOKENS))

    def load(
        self,
        rate_per_s: float,
        prompt_tokens: tuple[int, int] = (100, 300),
        output_tokens: tuple[int, int] = (100, 200),
        for_s: float = math.inf,
    ) -> None:
        """More requests from now on, for so many seconds."""
        since = self.now - START
        load = Load(rate_per_s, prompt_tokens, output_tokens, since, since + for_s)
        self._due.append((self.now + self._random.expovariate(rate_per_s), load))

    def send(self, prompt_tokens: int, output_tokens: int = 100) -> None:
        """One request that arrives now."""
        self._arrive(self.now, prompt_tokens, output_tokens)

    # --- one second ----------------------------------------------------------------------------------------------

    def rows(self) -> tuple[Floats, dict[str, Floats]]:
        """Play the second and return its rows; a page shows the last one only, and less."""
        n = round(1 / STEP_S)
        at = self.now + instants(n)
        rows = [self._play(float(t)) for t in at]
        columns = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}
        self._show_requests()
        if self.sees == "ring":
            return at, columns
        shown = {name: column[-1:] for name, column in columns.items() if name not in _RING_ONLY}
        return at[-1:], shown

    def _play(self, t: float) -> dict[str, float]:
        """One fifth of a second, up to `t`."""
        for when, prompt, output in self._arrivals(t):
            self._arrive(when, prompt, output)
        if self.hung:
            return self._row(t, QUEUE_EMPTY, 0.0, 0.0)
        reason = self._admit(t)
        planned, longest = self._prefill(t)
        row = self._row(t, reason, planned, longest)  # an engine books its step after admission, before who ends in it
        self._decode(t)
        self.totals["steps"] += 1
        return row

    def _arrivals(self, t: float) -> Iterator[tuple[float, int, int]]:
        for i, (due, load) in enumerate(self._due):
            while due <= t and due - START < load.until_s:
                yield due, self._random.randint(*load.prompt_tokens), self._random.randint(*load.output_tokens)
                due += self._random.expovariate(load.rate_per_s)
            self._due[i] = (due, load)

    def _arrive(self, at: float, prompt_tokens: int, output_tokens: int) -> None:
        self.totals["arrived"] += 1
        self.waiting.append(_Request(int(self.totals["arrived"]), at, prompt_tokens, output_tokens))

    def _free(self) -> int:
        return self.pool_blocks - sum(r.blocks for r in self.running)

    def _admit(self, t: float) -> float:
        reason, free = QUEUE_EMPTY, self._free()
        for request in list(self.waiting):
            if len(self.running) >= self.max_num_seqs:
                return BATCH_FULL
            if request.blocks > free:
                reason = NO_BLOCKS
                if self.admission == "fifo":
                    return reason
                continue
            free -= request.blocks
            self.waiting.remove(request)
            self.running.append(request)
            request.admitted_at = t
        return reason

    def _prefill(self, t: float) -> tuple[float, float]:
        budget, longest = self.prefill_tokens_per_s * self.speed * STEP_S, 0.0
        left = budget
        for request in self.running:
            chunk = min(left, request.prefill_left)
            if chunk <= 0:
                continue
            request.prefill_left -= chunk
            left -= chunk
            longest = max(longest, chunk)
            if request.prefill_left <= 0:
                request.first_token_at = t + STEP_S
        self.totals["prompt"] += budget - left
        return budget - left, longest

    def _decode(self, t: float) -> None:
        for request in list(self.running):
            if not request.first_token_at <= t:
                continue
            tokens = min(self.decode_tokens_per_s * self.speed * STEP_S, request.decode_left)
            request.decode_left -= tokens
            self.totals["generated"] += tokens
            if request.decode_left <= 0:
                self.running.remove(request)
                self._finished(request, t)

    def _finished(self, r: _Request, t: float) -> None:
        self.totals["finished"] += 1
        queue_s, prefill_s = r.admitted_at - r.arrived_at, r.first_token_at - r.admitted_at
        decode_s = t - r.first_token_at
        if self.spans:
            self.finish(r.id, r.arrived_at, queue_s, prefill_s, decode_s, r.prompt_tokens, r.output_tokens)
        self.observe("ttft_seconds", queue_s + prefill_s)
        self.observe("queue_seconds", queue_s)
        self.observe("prefill_seconds", prefill_s)
        self.observe("e2e_seconds", queue_s + prefill_s + decode_s)

    # --- how it shows --------------------------------------------------------------------------------------------

    def _row(self, t: float, reason: float, planned: float, longest: float) -> dict[str, float]:
        free = self._free()
        used, head = self.pool_blocks - free, self.waiting[0] if self.waiting else None
        return {
            "req_running": len(self.running),
            "req_waiting": len(self.waiting),
            "waiting_fit": sum(r.blocks <= free for r in self.waiting),
            "head_wait_seconds": t - head.arrived_at if head else 0.0,
            "head_need_blocks": head.blocks if head else 0.0,
            "admission_stop_reason": reason,
            "kv_usage_ratio": used / self.pool_blocks,
            "kv_used_blocks": used,
            "kv_total_blocks": self.pool_blocks,
            "step_seconds": STEP_S,
            "step_prefill_tokens": planned,
            "step_longest_prefill_tokens": longest,
            "step_decode_tokens": sum(1 for r in self.running if r.prefill_left <= 0),
            "steps_total": self.totals["steps"],
            "req_arrived_total": self.totals["arrived"],
            "req_finished_total": self.totals["finished"],
            "req_preempted_total": 0.0,
            "recomputed_tokens_total": 0.0,
            "prompt_tokens_total": self.totals["prompt"],
            "generated_tokens_total": self.totals["generated"],
        }

    def _show_requests(self) -> None:
        """The queue's first 16 and the largest holders, as the ring's table has them; and the step that hangs."""
        if self.sees != "ring":
            return
        if self.hung and self._step is None:
            self.hang(len(self.running), len(self.waiting))
        elif not self.hung:
            self.resume()
        holders = sorted(self.running, key=lambda r: -r.blocks)[:48]
        rows = [(r, 1.0, 0) for r in self.waiting[:16]] + [
            (r, 3.0 if r.prefill_left <= 0 else 2.0, r.blocks) for r in holders
        ]
        self.in_flight(
            InFlight(r.id, r.arrived_at, stage, r.prompt_tokens, blocks, r.output_tokens - r.decode_left)
            for r, stage, blocks in rows
        )
