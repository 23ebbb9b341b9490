"""The wrapper of every source: a failure is data, counted, logged once, and retried within two seconds."""

import asyncio
import logging

from gpuwatch.model import Batch, Subject
from gpuwatch.sources.poll import Poller

SUBJECT = Subject(engine="e")


class Scripted:
    """A source that does what its script says: a Batch, an exception to raise, or an event to wait for."""

    name, role, subject, interval_s = "scripted", "engine", SUBJECT, 1.0

    def __init__(self, *script):
        self.script = list(script)

    async def poll(self, now):
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, asyncio.Event):
            await step.wait()
        return Batch(self.name, self.role, self.subject, now, dropped=2)

    async def aclose(self):
        self.script.clear()


def run(poller, *times):
    async def main():
        return [await poller.poll(t) for t in times]

    return asyncio.run(main())


def test_an_exception_is_a_batch_with_its_error_and_the_source_lives_on(caplog):
    poller = Poller(Scripted(ValueError("no\nway"), KeyError("x"), None))
    with caplog.at_level(logging.INFO):
        first, second, third = run(poller, 10.0, 11.0, 12.0)
    assert first.error == "ValueError: no\nway"
    assert (first.source, first.role, first.subject, first.received_at) == ("scripted", "engine", SUBJECT, 10.0)
    assert second.error
    assert third.error is None
    assert (poller.counts.polls, poller.counts.errors, poller.counts.dropped) == (3, 2, 2)
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"], "once when it begins, once when it ends"


def test_a_poll_that_hangs_is_cut_off():
    poller = Poller(Scripted(asyncio.Event(), None), timeout_s=0.05)
    first, second = run(poller, 1.0, 2.0)
    assert first.error == "no answer within 0.05 s"
    assert first.took_s >= 0.04
    assert second.error is None


def test_retries_come_soon_then_slower_but_never_later_than_two_seconds():
    poller = Poller(Scripted(*[OSError("gone")] * 8, None))
    poller.source.interval_s = 0.2
    waits = []
    for t in range(100, 108):
        run(poller, float(t))
        waits.append(poller.due_at - t)
    assert waits[:4] == [0.25, 0.5, 1.0, 2.0]
    assert max(waits) == 2.0
    run(poller, 200.0)
    assert poller.due_at == 200.2


def test_a_slow_source_is_retried_sooner_than_its_own_pace():
    poller = Poller(Scripted(OSError("gone")))
    poller.source.interval_s = 60.0
    run(poller, 5.0)
    assert poller.due_at == 7.0


def test_a_long_error_is_cut():
    assert len(run(Poller(Scripted(ValueError("x" * 10_000))), 1.0)[0].error) <= 300
