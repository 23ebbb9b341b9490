"""Counts the slots that a server says are taken and freed, and adds up how fast they generate and compute prompts."""

from __future__ import annotations

from ..found import Slot, Stats

MOST_SLOTS = 4096
_SPEED = frozenset({"generated_tokens_per_second"})


class Slots:
    """The slots in use, each with its speed in tokens per second where it said one."""

    def __init__(self) -> None:
        self._busy: dict[int, float | None] = {}
        self._prompts: dict[int, float] = {}
        self._tells_prompts = False

    def take(self, slot: Slot) -> Stats:
        """Take an event; how many slots are in use then."""
        if slot.id is None:
            self._busy.clear()
            self._prompts.clear()
        elif not slot.busy:
            self._busy.pop(slot.id, None)
            self._prompts.pop(slot.id, None)
        elif slot.id in self._busy or len(self._busy) < MOST_SLOTS:
            self._busy[slot.id] = slot.tokens_per_second or self._busy.get(slot.id)
            self._take_prompt(slot.id, slot)
        gauges = {"req_running": float(len(self._busy))}
        if self._tells_prompts:
            gauges["prompt_tokens_per_second"] = sum(self._prompts.values())
        speeds = [speed for speed in self._busy.values() if speed is not None]
        if speeds or not self._busy:
            gauges["generated_tokens_per_second"] = sum(speeds)
            return Stats("llamacpp", gauges)
        return Stats("llamacpp", gauges, unknown=_SPEED)  # taken, and nobody has said how fast it is

    def _take_prompt(self, which: int, slot: Slot) -> None:
        """A slot computes its prompt until it says that it is done, or generates."""
        if slot.prompt_tokens_per_second:
            self._prompts[which] = slot.prompt_tokens_per_second
            self._tells_prompts = True
        elif slot.prompt_tokens_per_second is not None or slot.tokens_per_second is not None:
            self._prompts.pop(which, None)
