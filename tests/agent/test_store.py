"""What was found is remembered: through restarts, damage and full disks, without saying anything twice."""

import sqlite3

import pytest

from gpuwatch.config import Config
from gpuwatch.sinks.store import Store, StoreError, read_store
from tests.agent.builders import START, incident, opened, resolved
from tests.agent.disk import disk_of


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "incidents.db", keep=5)
    yield made
    made.close()


def test_the_newest_word_on_an_incident_is_kept_with_all_transitions(store):
    """An incident is one row that changes; its history is beside it."""
    store.add([opened("aa"), opened("bb", at=START + 40, onset_at=START + 10)])
    store.add([resolved("aa")])
    assert [(i.id, i.status) for i in store.incidents()] == [("bb", "open"), ("aa", "resolved")]
    assert [i.id for i in store.incidents(only_open=True)] == ["bb"]
    assert [t.kind for t in store.transitions("aa")] == ["opened", "resolved"]
    assert store.incident("a") == incident("aa", status="resolved", resolved_at=START + 300)
    assert store.incident("%") is None


def test_what_is_known_is_not_news(store, tmp_path):
    """A replay after a restart adds nothing and tells nothing."""
    assert len(store.add([opened()])) == 1
    assert store.add([opened()]) == ()
    again = Store(tmp_path / "incidents.db")
    assert again.add([opened(), resolved()]) == (resolved(),)
    again.close()


def test_a_restart_owes_each_sink_what_it_has_not_taken(store):
    """Per sink, in order, of the last hour; a sink of states is owed the last word only."""
    store.add([opened("a"), opened("b", at=START + 31), resolved("b")])
    store.delivered("webhook", opened("a"))
    owed = [(t.kind, t.incident.id) for t in store.owed("webhook", START + 400)]
    assert owed == [("opened", "b"), ("resolved", "b")]
    assert [(t.kind, t.incident.id) for t in store.owed("am", START + 400, newest_only=True)] == [
        ("opened", "a"),
        ("resolved", "b"),
    ]
    store.delivered("am", resolved("b"))
    assert [t.incident.id for t in store.owed("am", START + 400, newest_only=True)] == ["a"]
    assert store.owed("webhook", START + 10_000) == ()


def test_old_incidents_go_open_ones_stay(store):
    """Bounded by count; what is open is never cut."""
    store.add([opened("open", onset_at=START - 100)])
    for i in range(10):
        store.add([resolved(f"x{i}", at=START + i, onset_at=START + i)])
    ids = [i.id for i in store.incidents()]
    assert ids == ["x9", "x8", "x7", "x6", "x5", "open"]


@pytest.mark.parametrize(
    "damage", [b"this is no database at all, not even close", b"SQLite format 3\0" + b"\xff" * 4096]
)
def test_a_damaged_database_is_moved_aside_counted_and_said(tmp_path, damage):
    """The agent lives without its past."""
    path = tmp_path / "incidents.db"
    path.write_bytes(damage)
    store = Store(path)
    assert store.counts["corrupt"] == 1
    assert "moved to incidents.db.corrupt" in store.last_error
    assert (tmp_path / "incidents.db.corrupt").read_bytes() == damage
    store.add([opened()])
    assert [i.id for i in store.incidents()] == ["1a2b"]
    store.close()


def test_damage_while_running_is_survived(tmp_path):
    """Pages overwritten under a live connection: the next write begins a new database and keeps what it held."""
    store = Store(tmp_path / "incidents.db")
    store.add([opened(f"{i}") for i in range(50)])
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (tmp_path / "incidents.db").open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * 60_000)
    store._db.execute("PRAGMA shrink_memory")
    for i in range(100, 104):
        store.add([opened(f"{i}")])
    assert store.counts["corrupt"] + store.counts["failed_writes"] > 0
    store.add([opened("after")])
    assert "after" in [i.id for i in store.incidents()]
    store.close()


def test_a_locked_database_costs_the_write_not_the_transition(tmp_path):
    """What could not be written waits and is written with the next; it is told once all the same."""
    store = Store(tmp_path / "incidents.db")
    store._db.execute("PRAGMA busy_timeout = 1")
    other = sqlite3.connect(tmp_path / "incidents.db")
    other.execute("BEGIN EXCLUSIVE")
    assert len(store.add([opened("a")])) == 1
    assert (store.counts["failed_writes"], store.incidents()) == (1, ())
    assert store.add([opened("a")]) == ()
    other.rollback()
    other.close()
    store.add([opened("b")])
    assert {i.id for i in store.incidents()} == {"a", "b"}
    assert store.last_error == ""
    store.close()


def test_a_disk_full_from_the_start_leaves_the_store_off_until_there_is_room(tmp_path):
    """Counted and said; what it is told is news once, waits within its bound and is written when the disk has room."""
    with disk_of(100):
        store = Store(tmp_path / "incidents.db", keep=3)
        assert (store.is_off, store.counts["failed_opens"]) == (True, 1)
        assert "incidents.db" in store.last_error
        told = [opened(f"{i}", at=START + i, onset_at=START + i) for i in range(5)]
        assert store.add(told) == tuple(told)
        assert store.add(told[-1:]) == ()
        store.delivered("webhook", told[-1])
        assert (store.incidents(), store.owed("webhook", START + 10)) == ((), ())
        store.reopen()
        assert (store.is_off, store.counts["failed_opens"]) == (True, 2)
    store.reopen()
    assert (store.is_off, store.last_error) == (False, "")
    assert [i.id for i in store.incidents()] == ["4", "3", "2"]
    assert store.counts["cut_transitions"] == 2
    store.close()


def test_commands_that_only_look_create_nothing(tmp_path):
    """A missing or damaged store is an error that names the file."""
    path = Config(state_dir=str(tmp_path)).state_path / "incidents.db"
    with pytest.raises(StoreError, match=r"incidents\.db: no incidents"):
        read_store(path)
    assert not path.exists()
    path.write_text("nonsense" * 100)
    with pytest.raises(StoreError, match="not a database"):
        read_store(path)
