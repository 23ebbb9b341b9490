"""Telemetry for measurements that need none: the engine speaks and nobody writes it down."""

from __future__ import annotations

from ..request import Request, Stage


class Silence:
    """Implements step.Telemetry."""

    def step_begun(self, record: list[float]) -> None:
        """Nothing."""

    def step_ended(self, record: list[float]) -> None:
        """Nothing."""

    def stage_changed(self, request: Request, stage: Stage, now: float) -> None:
        """Nothing."""

    def finished(self, request: Request) -> None:
        """Nothing."""
