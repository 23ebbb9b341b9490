"""The gate before rules and baselines: is the engine loading, warming, serving, in maintenance or gone?"""

from __future__ import annotations

import math

from ..config import Maintenance
from ..memory.view import Window
from ..model import Event, Lifecycle, Missing

GONE_S = 10.0
WARM_REQUESTS = 20


def lifecycle(w: Window, warm_up_s: float, maintenance: tuple[Maintenance, ...]) -> Lifecycle:
    """Warming lasts until `warm_up_s` after the (re)start have passed, or until twenty requests were answered."""
    if any(m.from_at <= w.now < m.until_at and m.engine in ("", w.subject.engine) for m in maintenance):
        return "maintenance"
    announced = w.events("maintenance", 86400.0)
    if announced and _until_at(announced[-1]) > w.now:
        return "maintenance"
    failing = w.history.error_since.get("engine") or w.history.error_since.get("steps")
    if failing is not None and w.now - failing >= GONE_S:
        return "gone"
    if math.isnan(w.history.first_seen_at):
        return "loading"
    restarts = w.events("restart", 900.0)
    began = restarts[-1].at if restarts else w.history.first_seen_at
    if w.now - began < warm_up_s:
        try:
            answered = w.rate("req_finished_total", max(2.0, w.now - began)) * (w.now - began)
        except Missing:
            answered = 0.0
        if answered < WARM_REQUESTS:
            return "warming"
    return "serving"


def _until_at(announced: Event) -> float:
    """When an announced maintenance ends. An end that is no number comes from outside, and announces nothing."""
    try:
        return float(announced.detail.get("until_at", announced.at))
    except ValueError:
        return announced.at
