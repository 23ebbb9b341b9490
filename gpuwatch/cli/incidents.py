"""What the agent has found, read from its state folder: incidents, one of them, its postmortem."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

from ..config import Config
from ..incidents.verdict import text, to_json
from ..model import Incident, Verdict
from ..recording.capsule import CapsuleError
from ..recording.recorder import Recorder
from ..sinks.store import Store, StoreError, read_store


def listing(config: Config, limit: int, only_open: bool, as_json: bool) -> str:
    """All incidents, newest first, as JSON or as a table. Raises StoreError."""
    store = _store(config)
    found = store.incidents(limit=limit, only_open=only_open)
    store.close()
    if as_json:
        return to_json(Verdict(1, found, None, (), ())).decode() + "\n"
    if not found:
        return "No incidents.\n"
    rows = [("ID", "SEVERITY", "STATUS", "SINCE (UTC)", "ENGINE", "CLASS")]
    rows += [
        (i.id[:12], i.severity, i.status, _utc(i.onset_at), str(i.subject.get("engine") or "-")[:24], i.rule)
        for i in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines) + "\n"


def one(config: Config, id: str, as_json: bool) -> str:
    """One incident with what was said of it when. Raises StoreError."""
    store = _store(config)
    incident = _named(store, id)
    told = store.transitions(incident.id)
    store.close()
    verdict = Verdict(1, (incident,), None, (), ())
    if as_json:
        return to_json(verdict).decode() + "\n"
    lines = [f"{_utc(t.at)}  {t.kind} ({t.incident.severity})" for t in told]
    return text(verdict) + "\n" + "\n".join(lines) + f"\n\nid {incident.id}\n"


def postmortem(config: Config, what: str, out: str) -> str:
    """Write the postmortem of a capsule file or of an incident's id; says where. Raises StoreError, CapsuleError."""
    from ..report import write_postmortem

    html, markdown = (None, out) if out.endswith(".md") else (out, None)
    if Path(what).is_file():
        write_postmortem(what, html, markdown)
        return out
    store = _store(config)
    incident = _named(store, what)
    store.close()
    recorder = Recorder(config.state_path, config)
    written = recorder.capsule_path(incident.id)
    if written.exists():
        write_postmortem(written, html, markdown, incident.id)
        return out
    held = recorder.held(incident.id)
    if held is None:
        raise CapsuleError(f"{what}: its capsule is gone from {written.parent}")
    with tempfile.TemporaryDirectory() as folder:  # it is not over: what has been recorded so far
        capsule = recorder.write_capsule(held, Path(folder) / written.name)
        write_postmortem(capsule, html, markdown, incident.id)
    return out


def _store(config: Config) -> Store:
    return read_store(config.state_path / "incidents.db")


def _named(store: Store, id: str) -> Incident:
    incident = store.incident(id)
    if incident is None:
        raise StoreError(f"{store.path}: no incident {id!r}, or more than one that begins so")
    return incident


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
