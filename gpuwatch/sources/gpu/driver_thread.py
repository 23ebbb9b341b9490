"""One daemon thread for calls into a driver, which may block for seconds: they block nobody but themselves.

A call that has not ended is never started twice and never waited for longer than the caller's patience: the caller is
told for how long the driver has been silent, and gets the result at a later look, when there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class StalledError(Exception):
    """The driver has not come back for `age_s` seconds."""

    def __init__(self, age_s: float) -> None:
        self.age_s = age_s
        super().__init__(f"the driver has not answered for {age_s:.1f} s")


class _Flight(Generic[T]):
    """A call on its way: its result or error once it has ended, and whom to wake then."""

    def __init__(self, call: Callable[[], T], since: float) -> None:
        self.since = since
        self.result: T
        self.error: BaseException | None = None
        self._call = call
        self._lock = threading.Lock()
        self._landed = False
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def run(self) -> None:
        """Make the call. In the driver's thread."""
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error
        with self._lock:
            self._landed = True
            waiter = self._waiter
        if waiter is not None:
            loop, landed = waiter
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                loop.call_soon_threadsafe(landed.set)

    async def wait(self, patience_s: float) -> bool:
        """Whether it has landed within `patience_s`. In the event loop."""
        landed = asyncio.Event()
        with self._lock:
            if self._landed:
                return True
            self._waiter = asyncio.get_running_loop(), landed
        try:
            async with asyncio.timeout(patience_s):
                await landed.wait()
        except TimeoutError:
            return False
        return True


class DriverThread(Generic[T]):
    """Runs one call at a time. `name` is the thread's."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._flight: _Flight[T] | None = None

    async def look(self, call: Callable[[], T], now: float, patience_s: float) -> T:
        """The result of the call in flight, or of `call`. Raises StalledError, and whatever the call raises."""
        flight = self._flight
        if flight is None:
            flight = self._flight = _Flight(call, now)
            self._start()
            self._jobs.put(flight.run)
        if not await flight.wait(patience_s):
            raise StalledError(max(now - flight.since, patience_s))
        self._flight = None
        if flight.error is not None:
            raise flight.error
        return flight.result

    async def close(self, call: Callable[[], object], patience_s: float) -> None:
        """Run `call` last and end the thread; a driver that is silent for longer than `patience_s` is left behind."""
        if self._thread is None:
            return
        last = _Flight(call, 0.0)
        self._jobs.put(last.run)
        self._jobs.put(None)
        self._thread = None
        await last.wait(patience_s)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
