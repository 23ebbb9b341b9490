"""Incidents and their transitions in SQLite (WAL): what `gpuwatch incidents`, the API and a restart read.

A transition that is already known is not news: `add` says which are new, so that a muted replay sends nothing twice. A
database that is damaged is moved aside (`incidents.db.corrupt`), counted and begun anew: the agent lives without its
past, not the other way round. A disk that is full costs the write: it is counted and tried again at the next one. A
database that cannot be opened at all (a disk that was full from the start) leaves the store off: what it is told waits
in memory, bounded by `keep`, until `reopen` succeeds.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from ..model import Incident, Transition

SCHEMA = Path(__file__).with_name("schema.sql")
OWED_S = 3600.0
"""A sink is owed transitions of the last hour; what is older says nothing that helps."""

_encode = msgspec.json.encode
_incident = msgspec.json.Decoder(Incident).decode


class StoreError(Exception):
    """A store that cannot be read; the message names the file. Exit code 2 for the commands that read it."""


class Store:
    """The incidents of one agent. `last_error` is empty while writes succeed.

    `counts`: corrupt, failed_opens, failed_writes, cut_transitions. Off (`is_off`), it answers as if it were empty.
    """

    def __init__(self, path: str | Path, *, keep: int = 10_000) -> None:
        self.path = Path(path)
        self.keep = keep
        self.counts: Counter[str] = Counter()
        self.last_error = ""
        self._pending: dict[tuple[str, str, float], Transition] = {}
        self._db: sqlite3.Connection | None = None
        self._open()

    @property
    def is_off(self) -> bool:
        """Whether there is no database to write to."""
        return self._db is None

    def reopen(self) -> None:
        """Try again to open a store that is off, and write what waits. Costs a few system calls: not at every tick."""
        if self._db is None:
            self._open()
            self.flush()

    def add(self, transitions: Iterable[Transition]) -> tuple[Transition, ...]:
        """Store transitions and return those that were not known. What cannot be written waits for the next call."""
        news = [t for t in transitions if not self._known(t)]
        for transition in news:
            self._pending[_key(transition)] = transition
        self.flush()
        return tuple(news)

    def flush(self) -> None:
        """Write what waits. A damaged file is replaced; a full disk is counted and the transitions wait on, bounded."""
        if not self._pending:
            return
        if self._db is not None:
            try:
                with self._db as db:
                    self._write(db, list(self._pending.values()))
                self._pending.clear()
                self.last_error = ""
            except sqlite3.DatabaseError as error:
                self._not_written(error)
                if not isinstance(error, sqlite3.OperationalError):
                    self._replace(error)
        while len(self._pending) > self.keep:
            self._pending.pop(next(iter(self._pending)))
            self.counts["cut_transitions"] += 1

    def delivered(self, sink: str, transition: Transition) -> None:
        """Remember that a sink has taken a transition."""
        if self._db is None:  # as for a write that fails: at worst it is sent again
            self.counts["failed_writes"] += 1
            return
        try:
            with self._db as db:
                db.execute(
                    "INSERT OR IGNORE INTO deliveries SELECT ?, incident, kind, at FROM transitions"
                    " WHERE incident = ? AND kind = ? AND at = ?", (sink, *_key(transition)),
                )  # fmt: skip
        except sqlite3.DatabaseError as error:  # at worst it is sent again, under the same idempotency key
            self._not_written(error)

    def owed(self, sink: str, now: float, newest_only: bool = False) -> tuple[Transition, ...]:
        """Transitions of the last hour that a sink has not taken, oldest first; or only the last word on each incident."""
        last = " AND NOT EXISTS (SELECT 1 FROM transitions n WHERE n.incident = t.incident AND n.at > t.at)"
        rows = self._query(
            "SELECT kind, at, body FROM transitions t WHERE at >= ? AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE"  # noqa: S608
            " d.sink = ? AND d.incident = t.incident AND d.kind = t.kind AND d.at = t.at)"
            f"{last if newest_only else ''} ORDER BY at",
            (now - OWED_S, sink),
        )
        return tuple(_transition(*row) for row in rows)

    def incidents(self, *, limit: int = 100, only_open: bool = False) -> tuple[Incident, ...]:
        """Newest onset first."""
        where = "WHERE status = 'open'" if only_open else ""
        rows = self._query(f"SELECT body FROM incidents {where} ORDER BY onset_at DESC LIMIT ?", (limit,))  # noqa: S608
        return tuple(_incident(body) for (body,) in rows)

    def incident(self, id: str) -> Incident | None:
        """One incident by its id, or by an unambiguous beginning of it."""
        pattern = id.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = self._query("SELECT body FROM incidents WHERE id LIKE ? ESCAPE '\\' LIMIT 2", (pattern,))
        return _incident(rows[0][0]) if len(rows) == 1 else None

    def transitions(self, id: str) -> tuple[Transition, ...]:
        """What was said of an incident, oldest first."""
        rows = self._query("SELECT kind, at, body FROM transitions WHERE incident = ? ORDER BY at", (id,))
        return tuple(_transition(*row) for row in rows)

    def close(self) -> None:
        """Write what waits and close. A store that is off tries once more."""
        self.reopen()
        self.flush()
        if self._db is not None:
            self._db.close()

    def _not_written(self, error: sqlite3.DatabaseError) -> None:
        self.counts["failed_writes"] += 1
        self.last_error = f"{self.path}: {error}"

    def _known(self, transition: Transition) -> bool:
        key = _key(transition)
        if key in self._pending:
            return True
        return bool(self._query("SELECT 1 FROM transitions WHERE incident = ? AND kind = ? AND at = ?", key))

    def _write(self, db: sqlite3.Connection, transitions: list[Transition]) -> None:
        for t in transitions:
            i, body = t.incident, _encode(t.incident).decode()
            db.execute(
                "INSERT INTO incidents VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
                " rule = excluded.rule, severity = excluded.severity, status = excluded.status,"
                " onset_at = excluded.onset_at, resolved_at = excluded.resolved_at, body = excluded.body",
                (i.id, i.rule, i.severity, i.status, i.onset_at, i.detected_at, i.resolved_at, body),
            )
            db.execute("INSERT OR IGNORE INTO transitions VALUES (?, ?, ?, ?)", (*_key(t), body))
        db.execute(
            "DELETE FROM incidents WHERE status = 'resolved' AND id NOT IN"
            " (SELECT id FROM incidents ORDER BY onset_at DESC LIMIT ?)", (self.keep,),
        )  # fmt: skip

    def _query(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        if self._db is None:
            return []
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            self.last_error = f"{self.path}: {error}"
            return []
        except sqlite3.DatabaseError as error:
            self._replace(error)
            return []

    def _open(self) -> None:
        """Open the database, a new one if what is there is damaged; off where that fails."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._db = _connect(self.path)
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError as error:
                self._set_aside(error)
                self._db = _connect(self.path)
                return
        except (sqlite3.DatabaseError, OSError) as error:
            self._db = None
            self.counts["failed_opens"] += 1
            self.last_error = f"{self.path}: {error}"
            return
        self.last_error = ""

    def _replace(self, error: sqlite3.DatabaseError) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        try:
            self._set_aside(error)
            self._db = _connect(self.path)
        except (sqlite3.DatabaseError, OSError) as failed:
            self.counts["failed_opens"] += 1
            self.last_error = f"{self.path}: {failed}"

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Move a damaged database out of the way; the newest is kept, for whoever wants to look."""
        self.counts["corrupt"] += 1
        self.last_error = f"{self.path}: {error}; moved to {self.path.name}.corrupt"
        self.path.replace(self.path.with_name(self.path.name + ".corrupt"))
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def read_store(path: Path) -> Store:
    """Open an existing store for a command that only looks. Raises StoreError where there is none or it is damaged."""
    if not path.exists():
        raise StoreError(f"{path}: no incidents recorded here")
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            db.execute("SELECT count(*) FROM incidents").fetchone()
    except sqlite3.DatabaseError as error:
        raise StoreError(f"{path}: {error}") from error
    store = Store(path)
    if store.is_off:
        raise StoreError(store.last_error)
    return store


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.executescript(SCHEMA.read_text("utf-8"))
    except sqlite3.DatabaseError:
        db.close()
        raise
    return db


def _transition(kind: Any, at: float, body: str) -> Transition:
    return Transition(kind, at, _incident(body))


def _key(transition: Transition) -> tuple[str, str, float]:
    return transition.incident.id, transition.kind, transition.at
