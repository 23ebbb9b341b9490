"""Changes of a rollout: the pod's template and image, the driver, a new process; remembered across the agent's restart."""

import asyncio
import json
import stat

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.config import parse
from gpuwatch.model import Event, Info, Subject
from gpuwatch.questions.moved import CHANGES, changes, in_words
from gpuwatch.sources.changes.build import change_sources
from gpuwatch.sources.changes.known import KnownFacts
from gpuwatch.sources.changes.podinfo import pod_facts
from gpuwatch.sources.changes.source import ChangesSource

HERE, ENGINE, GPU = Subject(host="here"), Subject(engine="e"), Subject(gpu="GPU-1")


def poll(source, now=1.0):
    return asyncio.run(source.poll(now))


LABELS = 'app="vllm"\npod-template-hash="5d4f8c7b9"\napp.kubernetes.io/version="0.11.0"\nsecret-token="x"\nbroken\n'


def test_the_downward_api_tells_names_template_and_image(tmp_path):
    (tmp_path / "labels").write_text(LABELS)
    (tmp_path / "annotations").write_text('gpuwatch/image="vllm/vllm-openai@sha256:0a"\nother="a\\"b"\n')
    (tmp_path / "namespace").write_text("serving\n")
    assert pod_facts(tmp_path, {"POD_NAME": "vllm-0", "NODE_NAME": "node7"}) == {
        "pod_name": "vllm-0", "pod_namespace": "serving", "pod_node": "node7", "pod_template_hash": "5d4f8c7b9",
        "app_version": "0.11.0", "pod_image": "vllm/vllm-openai@sha256:0a",
    }  # fmt: skip
    assert pod_facts(tmp_path / "nowhere", {}) == {}


def test_a_digest_that_is_pinned_is_no_credential(tmp_path):
    image = "ghcr.io/acme/vllm@sha256:" + "0f1e2d3c" * 8
    before, after = (pod_facts(tmp_path, {"POD_IMAGE": image.replace("0f", end)}) for end in ("aa", "bb"))
    assert before["pod_image"] != after["pod_image"], "another digest is another image"


def test_a_new_template_is_a_change_of_every_engine_of_the_pod_and_a_new_node_is_none():
    facts = {"pod_template_hash": "a1", "pod_node": "n1"}
    source = ChangesSource(HERE, pod=lambda: dict(facts), engines=[ENGINE])
    first, again = poll(source), poll(source)
    assert first.info == (Info(ENGINE, 1.0, facts),)
    assert (first.events, again.info) == ((), ())
    facts["pod_node"] = "n2"
    assert poll(source).events == ()
    facts["pod_template_hash"] = "b2"
    assert poll(source, 9.0).events == (Event(ENGINE, 9.0, "change", {"pod_template_hash": "a1 → b2"}),)


def test_a_new_driver_is_a_new_version_of_the_device():
    source = ChangesSource(HERE)
    for driver in ("580.65", "580.65", "590.10"):
        source.saw(Info(GPU, 5.0, {"driver": driver, "name": "H100"}))
    assert poll(source).events == (Event(GPU, 5.0, "version", {"driver": "580.65 → 590.10"}),)


def test_a_change_that_two_sources_tell_of_is_one_event():
    source = ChangesSource(HERE)
    for at, version in ((1.0, "1"), (100.0, "2")):
        source.saw(Info(ENGINE, at, {"version": version}))
        source.saw(Info(ENGINE, at + 5, {"version": version}), "about")
    assert [(e.at, e.detail) for e in poll(source).events] == [(100.0, {"version": "1 → 2"})]
    source.saw(Info(ENGINE, 1000.0, {"version": "1"}))
    assert len(poll(source).events) == 1, "back again is another change"


def test_what_was_known_survives_the_agents_restart(tmp_path):
    """In a rollout engine and agent are replaced together: without a memory every version would be a first sight."""
    path = tmp_path / "changes.json"
    before = ChangesSource(HERE, known=KnownFacts(path))
    before.saw(Info(ENGINE, 1.0, {"version": "0.1", "arg_seed": "1"}))
    assert poll(before).events == ()
    after = ChangesSource(HERE, known=KnownFacts(path))
    after.saw(Info(ENGINE, 50.0, {"version": "0.2", "arg_seed": "1"}))
    assert [e.detail for e in poll(after).events] == [{"version": "0.1 → 0.2"}]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert KnownFacts(path).key == KnownFacts(path).key, "fingerprints stay comparable"


@given(st.binary(max_size=200))
def test_any_memory_is_used_or_begun_anew(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("m") / "changes.json"
    path.write_bytes(data)
    known = KnownFacts(path)
    known.replace(ENGINE, "said", {"version": "1"})
    assert KnownFacts(path).get(ENGINE, "said") == {"version": "1"}


def test_a_memory_that_cannot_be_written_is_counted(tmp_path):
    known = KnownFacts(tmp_path / "nowhere" / "changes.json")
    known.replace(ENGINE, "said", {"version": "1"})
    assert known.failed == 1
    assert known.get(ENGINE, "said") == {"version": "1"}


def test_the_memory_is_bounded():
    known = KnownFacts()
    for i in range(1000):
        known.replace(Subject(engine=f"e{i}"), "said", {"version": "1"})
    source = ChangesSource(HERE, known=known)
    source.saw(Info(ENGINE, 1.0, {"version": "1"}))
    assert poll(source).dropped == 1


class Seen:
    """A window, as far as changes ask it."""

    now = 1000.0

    def __init__(self, engine=(), gpu=()):
        self.history = type("H", (), {"events": list(engine)})()
        self.gpus = (type("H", (), {"events": list(gpu)})(),)


def test_one_restart_is_one_change_whoever_tells_of_it():
    told = [
        Event(ENGINE, at, "restart", {"how": how})
        for at, how in ((500, "new step ring"), (540, "start stamp"), (800, "x"))
    ]
    assert [event.at for event in changes(Seen(engine=told))] == [500, 800]


def test_a_devices_new_driver_is_a_change_of_the_engine_and_its_xid_is_not():
    driver = Event(GPU, 600.0, "version", {"driver": "1 → 2"})
    assert changes(Seen(gpu=[driver, Event(GPU, 610.0, "xid", {"code": "79"})])) == [driver]


def test_changes_are_said_with_what_was_and_what_is():
    assert in_words(Event(ENGINE, 1.0, "arguments", {"arg_seed": "1 → 2", "x": "y"})) == "arguments: arg_seed 1 → 2"
    assert in_words(Event(ENGINE, 1.0, "change", {"what": "rollout"})) == "change: rollout"
    assert in_words(Event(ENGINE, 1.0, "restart", {"how": "a new process"})) == "restart"
    assert set(CHANGES) == {"restart", "version", "arguments", "change"}


def test_which_engines_share_the_pod_and_who_is_asked(tmp_path):
    (tmp_path / "labels").write_text('pod-template-hash="a"\n')
    config = parse(
        {
            "engines": [
                {"url": "http://localhost:8000", "name": "e"},
                {"url": "http://localhost:8001", "name": "other", "pod": "ns/other"},
                {"url": "http://10.0.0.9:8000", "name": "far"},
            ],
            "machine": {"podinfo": str(tmp_path), "ask_engines": False},
        }
    )
    (source,) = change_sources(config, [], dict, "here", KnownFacts(), {})
    assert [info.subject for info in poll(source).info] == [ENGINE]


def test_the_memory_holds_no_credential(tmp_path):
    path = tmp_path / "changes.json"
    source = ChangesSource(HERE, known=KnownFacts(path))
    source.saw(Info(ENGINE, 1.0, {"version": "http://u:hunter2@h/x", "arg_api_key": "<hidden>"}))
    assert "hunter2" not in json.dumps(json.loads(path.read_text()))
