"""Alertmanager's API v2: opt-in, with the labels of the Prometheus rule on `gpuwatch_incident_open`, so that both
together notify once.

An open incident is posted with an `endsAt` in the near future and again before that is reached; a resolved one with its
end. Where the severity has changed, the alert under the old labels is ended in the same request. `info` explains and
does not alert, as in the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from ..config import SCOPE_KEYS, Alertmanager
from ..model import Incident, Transition
from .http_post import Poster

LIVES_REPOSTS = 3
"""An alert outlives this many missed reposts; then Alertmanager resolves it: nobody says any more that it is open."""
RUNBOOKS = "https://github.com/gpuwatch/gpuwatch/blob/main/runbooks"

Labels = tuple[tuple[str, str], ...]


class AlertmanagerSink:
    """Posts to `<url>/api/v2/alerts`. `now`: the time of posting, which may be long after the transition."""

    name = "alertmanager"
    newest_only = True

    def __init__(self, settings: Alertmanager, scope: Mapping[str, str], now: Callable[[], float]) -> None:
        self._settings = settings
        self._scope = dict(scope)
        self._now = now
        self._poster = Poster(settings.url.rstrip("/") + "/api/v2/alerts", settings.timeout_s)
        self._open: dict[str, Labels] = {}

    async def send(self, transition: Transition) -> None:
        """Post the incident as it is, and the end of what it was."""
        incident = transition.incident
        alerts = list(self._alerts(incident))
        if alerts:
            await self._poster.post(msgspec.json.encode(alerts))
        if _alerting(incident):
            self._open[incident.id] = labels_of(incident, self._scope)
        else:
            self._open.pop(incident.id, None)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._poster.aclose()

    def _alerts(self, incident: Incident) -> Iterator[dict[str, object]]:
        labels = labels_of(incident, self._scope)
        now = self._now()
        if _alerting(incident):
            yield _alert(incident, labels, now + LIVES_REPOSTS * self._settings.repost_s)
        ended = self._ended(incident, labels)
        if ended is not None and not self._shared(incident.id, ended):
            yield _alert(incident, ended, min(now, incident.resolved_at or now))

    def _ended(self, incident: Incident, labels: Labels) -> Labels | None:
        """The labels under which the incident no longer stands."""
        before = self._open.get(incident.id)
        if _alerting(incident):
            return before if before != labels else None
        if before is None and incident.severity != "info":
            return labels  # it may have been posted before a restart
        return before

    def _shared(self, incident: str, labels: Labels) -> bool:
        """Whether another open incident stands under the same labels: then the alert must not end."""
        return any(other != incident and theirs == labels for other, theirs in self._open.items())


def _alerting(incident: Incident) -> bool:
    return incident.status == "open" and incident.severity != "info"


def labels_of(incident: Incident, scope: Mapping[str, str]) -> Labels:
    """The labels of an incident's alert, without empty ones, as pairs in alphabetical order."""
    name = "Gpuwatch" + "".join(word.capitalize() for word in incident.rule.split("_"))
    labels = {
        "alertname": name,
        "engine": str(incident.subject.get("engine") or ""),
        "family": incident.family,
        "rule": incident.rule,
        "severity": incident.severity,
        **{key: scope.get(key, "") for key in SCOPE_KEYS},
    }
    return tuple(sorted((key, value) for key, value in labels.items() if value))


def _alert(incident: Incident, labels: Labels, ends_at: float) -> dict[str, object]:
    first = incident.advice[0].do if incident.advice else ""
    description = " ".join(
        part
        for part in (
            f"Trigger: {incident.trigger.kind}." if incident.trigger else "",
            f"First: {first}." if first else "",
            f"Not now: {incident.not_now[0]}." if incident.not_now else "",
        )
        if part
    )
    starts_at = min(incident.onset_at, ends_at)
    return {
        "labels": dict(labels),
        "annotations": {
            "summary": incident.summary,
            "description": description,
            "runbook_url": f"{RUNBOOKS}/{incident.rule}.md",
            "incident": incident.id,
        },
        "startsAt": _rfc3339(starts_at),
        "endsAt": _rfc3339(ends_at),
    }


def _rfc3339(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).isoformat(timespec="milliseconds")
