"""Builders for tests of rules, yours and ours: worlds in virtual time, without an engine, a network or a clock.

`window` gives a rule the seconds that you write down; `World` plays gauges, counters, spans and failures through a
pipeline; `ToyEngine` is a world whose numbers follow from a small batch server, so that they agree with each other.

    toy = ToyEngine(pool_blocks=600)
    toy.load(rate_per_s=4, prompt_tokens=(100, 300), output_tokens=(100, 200))
    toy.run(120)
    assert my_rule.check(toy.window(), my_rule.Params()) is None
"""

from .seconds import window
from .toy_engine import Load, ToyEngine
from .world import START, InFlight, Sees, World

__all__ = ["START", "InFlight", "Load", "Sees", "ToyEngine", "World", "window"]
