"""Unknown: harm that no rule explains is said as such, later than a verdict would be, and gives way to one."""

from gpuwatch.config import Config
from gpuwatch.incidents.unknown import UNKNOWN
from gpuwatch.rules import load_rules
from gpuwatch.testing import START, ToyEngine, World

EVERY_RULE = tuple(load_rules())


def late(world: World, seconds: int, ttft_s: float = 4.0) -> list:
    """Seconds in which two requests a second end, late for a reason that nothing shows."""
    ticks = []
    for _ in range(seconds):
        for k in range(2):
            world.finish(int(world.now * 10) + k, world.now - ttft_s - 1, 0.1, ttft_s - 0.1, 0.5)
        ticks += world.run(1)
    return ticks


def healthy(config: Config | None = None) -> World:
    world = World(config)
    world.set(req_running=6.0, req_waiting=0.0, kv_usage_ratio=0.3, req_finished_total=2.0, req_arrived_total=2.0,
              generated_tokens_total=100.0, head_wait_seconds=0.0)  # fmt: skip
    late(world, 60, ttft_s=0.2)
    return world


def opened(ticks: list) -> list[tuple[str, str]]:
    return [(t.kind, t.incident.rule) for tick in ticks for t in tick.transitions]


def test_harm_without_a_mechanism_is_unknown_after_a_while():
    """Not at once: a mechanism has 45 seconds to show itself."""
    world = healthy()
    assert opened(late(world, 40)) == []
    assert opened(late(world, 60)) == [("opened", "unknown")]
    (incident,) = world.pipeline.verdict().incidents
    assert (incident.severity, incident.action, incident.family) == ("page", "observe", "unknown")
    assert incident.onset_at >= START + 60
    assert incident.not_now
    assert {e.signal for e in incident.evidence} >= {"req_waiting", "kv_usage_ratio"}


def test_it_ends_with_the_harm():
    world = healthy()
    late(world, 110)
    assert ("resolved", "unknown") in opened(late(world, 120, ttft_s=0.2))
    assert world.pipeline.verdict().incidents[0].status == "resolved"


def test_without_harm_nothing_is_unknown():
    assert opened(late(healthy(), 120, ttft_s=0.2)) == []


def test_lateness_within_twice_the_usual_is_usual():
    """An engine that always needs four seconds is slow by design, not by incident."""
    world = World(Config())
    world.set(req_running=6.0, req_waiting=0.0, req_finished_total=2.0, head_wait_seconds=0.0)
    for name in ("ttft_p95_s",):
        world.run(1)
        for k in range(5):
            world.pipeline.baselines[world.subject.key].learn(START - 100 + k, {name: 4.0})
    assert opened(late(world, 120, ttft_s=4.5)) == []


def test_a_muted_rule_leaves_its_incident_unknown():
    """What is muted is not judged, but what users feel is still said."""
    toy = ToyEngine(Config(muted=EVERY_RULE))
    toy.load(5)
    ticks = toy.run(60)
    toy.load(8)
    assert opened(ticks + toy.run(90)) == [("opened", "unknown")]


def test_unknown_explains_nothing_and_opens_as_nothing_else():
    assert UNKNOWN.explains == ()
    assert UNKNOWN.stem not in load_rules()
