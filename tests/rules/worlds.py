"""Toy worlds in which an incident class happens by its own mechanism, and its look-alikes.

Each is a function of what is seen (`ring` or `page`) and returns the world after its last second; played once a session.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from gpuwatch.model import Finding, Incident, Tick, Transition
from gpuwatch.testing import START, Sees, ToyEngine

QUIET_S = 60


class Played(NamedTuple):
    """A world and what the pipeline said in it, second by second."""

    world: ToyEngine
    ticks: tuple[Tick, ...]

    @property
    def transitions(self) -> list[Transition]:
        return [t for tick in self.ticks for t in tick.transitions]

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return self.world.pipeline.verdict().incidents

    @property
    def rules(self) -> list[str]:
        """The rules of all incidents of the verdict."""
        return [i.rule for i in self.incidents]

    def opened(self, rule: str) -> list[float]:
        """When an incident of a rule opened, seconds of the world."""
        return [t.at - START for t in self.transitions if t.kind == "opened" and t.incident.rule == rule]

    def findings(self, rule: str) -> list[tuple[float, Finding]]:
        """The sure findings of a rule with the second at which they were made."""
        return [(tick.now - START, f) for tick in self.ticks for f in tick.findings if f.rule == rule]

    def blind(self, rule: str) -> list[str]:
        """What a rule lacked at the last second."""
        return [m for b in self.ticks[-1].blind if b.rule == rule for m in b.missing]


@cache
def steady(sees: Sees) -> Played:
    """Four requests a second, half the batch, no queue."""
    toy = ToyEngine(sees=sees)
    toy.load(4)
    return Played(toy, tuple(toy.run(120)))


@cache
def thrashing(sees: Sees, admission: str = "fifo") -> Played:
    """From 90 s on, one request in forty needs most of the pool: under FIFO the batch drains for each of them."""
    toy = ToyEngine(sees=sees, pool_blocks=600, admission=admission)
    toy.load(4, output_tokens=(100, 250))
    ticks = toy.run(90)
    toy.load(0.1, prompt_tokens=(5500, 7000), output_tokens=(50, 100))
    return Played(toy, tuple(ticks + toy.run(150)))


@cache
def one_giant(sees: Sees, admission: str = "fifo") -> Played:
    """At 60 s a single request comes that needs nine tenths of the pool."""
    toy = ToyEngine(sees=sees, pool_blocks=1200, admission=admission, decode_tokens_per_s=20)
    toy.load(2, output_tokens=(200, 300))
    ticks = toy.run(QUIET_S)
    toy.send(prompt_tokens=17_500, output_tokens=100)
    return Played(toy, tuple(ticks + toy.run(80)))


@cache
def documents(sees: Sees) -> Played:
    """From 90 s on long requests with long answers take over the pool; whoever fits is let in."""
    toy = ToyEngine(sees=sees, pool_blocks=1000, admission="bypass")
    toy.load(3)
    ticks = toy.run(90)
    toy.load(0.1, prompt_tokens=(2500, 4500), output_tokens=(1500, 2500))
    return Played(toy, tuple(ticks + toy.run(120)))


@cache
def growth(sees: Sees) -> Played:
    """Demand grows in small steps past what the batch can serve."""
    toy = ToyEngine(sees=sees)
    toy.load(6)
    ticks = toy.run(QUIET_S)
    for seconds in (40, 40, 80):
        toy.load(1)
        ticks += toy.run(seconds)
    return Played(toy, tuple(ticks))


@cache
def full_pool(sees: Sees) -> Played:
    """Demand grows past what the KV pool can hold; requests are of the usual length."""
    toy = ToyEngine(sees=sees, pool_blocks=500, max_num_seqs=200)
    toy.load(4)
    ticks = toy.run(QUIET_S)
    for seconds in (40, 40, 100):
        toy.load(0.7)
        ticks += toy.run(seconds)
    return Played(toy, tuple(ticks))


@cache
def burst(sees: Sees) -> Played:
    """At 60 s the arrival rate doubles and more, for 50 s; then it is as before and the queue drains."""
    toy = ToyEngine(sees=sees)
    toy.load(5)
    ticks = toy.run(QUIET_S)
    toy.load(6, for_s=50)
    return Played(toy, tuple(ticks + toy.run(150)))


@cache
def hang(sees: Sees, gpu: str = "") -> Played:
    """At 60 s nothing moves any more; at 140 s it does again. The device, where there is one, does no work meanwhile."""
    toy = ToyEngine(sees=sees, gpu=gpu)
    if gpu:
        toy.set(gpu_dram_active_ratio=0.7, gpu_tensor_active_ratio=0.1, gpu_util_ratio=1.0)
    toy.load(4)
    ticks = toy.run(QUIET_S)
    toy.hung = True
    if gpu:
        toy.set(gpu_dram_active_ratio=0.0, gpu_tensor_active_ratio=0.0)
    ticks += toy.run(80)
    toy.hung = False
    return Played(toy, tuple(ticks + toy.run(90)))


@cache
def long_prefill(sees: Sees) -> Played:
    """One very long prompt shares the prefill rate; everybody else goes on decoding."""
    toy = ToyEngine(sees=sees, pool_blocks=20_000, prefill_tokens_per_s=5000)
    toy.load(2)
    ticks = toy.run(QUIET_S)
    toy.send(prompt_tokens=60_000, output_tokens=100)
    return Played(toy, tuple(ticks + toy.run(60)))


BOTH: tuple[Sees, ...] = ("ring", "page")
