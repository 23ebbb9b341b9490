"""One incident class is one stem: every file that carries it exists, none is left over, and all of them agree."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from gpuwatch.catalog import CATALOG
from gpuwatch.model import Family
from gpuwatch.rules import Rule, load_rules
from gpuwatch.rules.families import FAMILIES, FAMILY_OF
from tests.full_page import exported_names
from tests.metric_names import (
    REPOSITORY,
    in_query,
    in_runbook,
    queries_of_dashboard,
    queries_of_runbook,
    rules_of,
)

FIRST_SIX = {
    "batch_thrashing",
    "long_context_kv_pressure",
    "overload",
    "head_of_line_blocking",
    "engine_hang",
    "traffic_surge",
}
COMPANIONS = (
    "gpuwatch/rules/{}.py",
    "tests/rules/test_{}.py",
    "tests/scenarios/{}.toml",
    "alerts/{}.yml",
    "alerts/tests/{}.yml",
    "runbooks/{}.md",
)
BESIDE_THE_CLASSES = {
    "alerts/{}.yml": {"unknown", "agent", "slo", "alertmanager.example"},
    "alerts/tests/{}.yml": {"unknown", "agent", "slo"},
    "runbooks/{}.md": {"unknown", "agent_down", "agent_blind", "slo_burn"},
}
HEADINGS = ["Meaning", "Impact", "Confirm", "Tell it apart from", "Mitigate", "Prevent", "Blind spots"]
RUNBOOKS = sorted((REPOSITORY / "runbooks").glob("*.md"))
ALERT_FILES = sorted(p for p in (REPOSITORY / "alerts").glob("*.yml") if p.stem != "alertmanager.example")
DASHBOARDS = sorted((REPOSITORY / "dashboards" / "json").glob("*.json"))
RUNBOOK_URL = "https://github.com/gpuwatch/gpuwatch/blob/main/runbooks/{}.md"
OF_PROMETHEUS = {"up"}

RULES = list(load_rules().values())
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.stem)


def by_stem(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("file", paths, ids=lambda p: p.stem)


def tracked(*patterns: str) -> Iterator[Path]:
    """Files that git knows or would add, by pattern."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    return (REPOSITORY / line for line in listing.stdout.splitlines() if (REPOSITORY / line).is_file())


def known_metrics() -> set[str]:
    """Every metric that a query may ask for: those on the agent's page, and the recordings in alerts/."""
    recorded = {rule["record"] for file in ALERT_FILES for rule in rules_of(file) if "record" in rule}
    return OF_PROMETHEUS | exported_names() | recorded


def test_the_first_six_classes_are_there():
    assert set(load_rules()) >= FIRST_SIX


@each_rule
@pytest.mark.parametrize("companion", COMPANIONS)
def test_every_class_has_all_its_files(rule: Rule, companion: str):
    assert (REPOSITORY / companion.format(rule.stem)).is_file()


@pytest.mark.parametrize("companion", [c for c in COMPANIONS if not c.startswith("tests/scenarios")])
def test_no_file_is_left_over_from_a_class_that_is_gone(companion: str):
    """A rule's neighbours in its folder that are no class are shared parts; everything else carries a rule's stem."""
    before, after = (REPOSITORY / companion).name.split("{}")
    found = {p.name.removeprefix(before).removesuffix(after) for p in (REPOSITORY / companion).parent.glob("*" + after)}
    if companion.startswith(("gpuwatch/rules", "tests/rules")):
        found &= set(FAMILY_OF)
    assert found == set(load_rules()) | BESIDE_THE_CLASSES.get(companion, set())


def test_every_scenario_is_of_a_class_or_healthy():
    """`<stem>.toml` is the class's own scenario, `<stem>_….toml` a variant of it, `healthy_….toml` a control."""
    scenarios = sorted((REPOSITORY / "tests" / "scenarios").glob("*.toml"))
    for file in scenarios:
        expected = tomllib.loads(file.read_text())["expect"]["class"]
        own = [stem for stem in load_rules() if file.stem == stem or file.stem.startswith(f"{stem}_")]
        if file.stem.startswith("healthy_"):
            assert expected == "none", file.name
        else:
            assert own, f"{file.name}: no class of that name"
            assert expected in {*own, "unknown"}, f"{file.name} expects {expected}"
    assert sum(file.stem.startswith("healthy_") for file in scenarios) >= 8


@each_rule
def test_family_and_neighbours_are_known(rule: Rule):
    assert FAMILY_OF[rule.stem] == rule.family
    assert set(rule.explains) <= set(FAMILY_OF)
    assert set(rule.tell_apart) <= set(FAMILY_OF)
    assert rule.stem not in rule.explains


def test_families_are_those_of_the_types_and_no_stem_is_listed_twice():
    assert {*FAMILIES, "unknown"} == set(get_args(Family))
    assert len(FAMILY_OF) == sum(map(len, FAMILIES.values()))


def test_explains_has_no_cycle():
    """If a class could explain its own cause, nesting symptoms under causes would hide both."""
    explained_by = {stem: set(rule.explains) & set(load_rules()) for stem, rule in load_rules().items()}
    while leaves := {stem for stem, symptoms in explained_by.items() if not symptoms & set(explained_by)}:
        explained_by = {stem: symptoms for stem, symptoms in explained_by.items() if stem not in leaves}
    assert not explained_by, f"cycle among {sorted(explained_by)}"


@each_rule
def test_needs_are_catalogue_signals(rule: Rule):
    assert set(rule.needs) <= set(CATALOG) | {"spans", "requests", "open_steps"}
    assert rule.opens_eyes or not rule.needs


@each_rule
def test_advice_starts_without_a_restart_and_says_price_and_proof(rule: Rule):
    """At 3 a.m. the first thing to try is one that can be undone."""
    assert rule.advice
    assert rule.not_now
    assert rule.advice[0].applies == "runtime" or rule.stem == "engine_hang"
    for advice in rule.advice:
        assert advice.takes_s > 0, advice.do
        assert advice.costs, advice.do
        assert advice.verify, advice.do


@each_rule
def test_no_advice_names_a_knob_that_engines_have_removed(rule: Rule):
    """vLLM took these away in 2026; an on-call who is told to set them gets a start-up error at 3 a.m."""
    removed = ("--max-num-partial-prefills", "--max-long-partial-prefills", "--swap-space", "--preemption-mode")
    words = " ".join(f"{advice.do} {advice.knob}" for advice in rule.advice)
    assert [knob for knob in removed if knob in words] == []


@each_rule
def test_the_alert_agrees_with_the_rule(rule: Rule):
    """Name, selector, runbook; severity is the series' own, because harm decides it and not the class."""
    (alert,) = rules_of(REPOSITORY / "alerts" / f"{rule.stem}.yml")
    assert alert["alert"] == rule.alert_name
    assert f'rule="{rule.stem}"' in alert["expr"]
    assert "severity" in alert["expr"].split("(")[1], "severity must survive the aggregation"
    assert "severity" not in alert.get("labels", {})
    assert alert["for"] == "0s", "the agent has held the finding already"
    assert alert["annotations"]["runbook_url"] == RUNBOOK_URL.format(rule.stem)


@by_stem(ALERT_FILES)
def test_every_alert_has_words_and_an_existing_runbook(file: Path):
    for alert in rules_of(file):
        if "alert" not in alert:
            continue
        notes = alert["annotations"]
        assert notes["summary"], alert["alert"]
        assert notes["description"], alert["alert"]
        stem = notes["runbook_url"].rsplit("/", 1)[1].removesuffix(".md")
        assert notes["runbook_url"] == RUNBOOK_URL.format(stem)
        assert (REPOSITORY / "runbooks" / f"{stem}.md").is_file()
        assert alert["alert"].startswith("Gpuwatch")


@by_stem(RUNBOOKS)
def test_every_runbook_has_the_seven_headings_in_order(file: Path):
    text = file.read_text()
    assert text.startswith("# ")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == HEADINGS
    for section in text.split("\n## ")[1:]:
        assert len(section.splitlines()) > 2, section.splitlines()[0]


@by_stem([*RUNBOOKS, REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"])
def test_pages_name_commands_that_exist(file: Path):
    """A command that an on-call types from a page answers."""
    from gpuwatch.cli.main import main

    text = file.read_text()
    code = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))
    assert set(re.findall(r"(?:^|/)gpuwatch ([a-z]+)\b", code, re.MULTILINE)) <= set(main.commands)


@by_stem(RUNBOOKS)
def test_every_query_of_a_runbook_parses(file: Path):
    for query in queries_of_runbook(file.read_text()):
        assert in_query(query), query


@by_stem(RUNBOOKS)
def test_runbooks_mention_metrics_that_exist(file: Path):
    assert in_runbook(file.read_text()) <= known_metrics()


@by_stem(ALERT_FILES)
def test_alerts_ask_for_metrics_that_exist(file: Path):
    for rule in rules_of(file):
        assert in_query(rule["expr"]) <= known_metrics(), rule.get("alert", rule.get("record"))


@by_stem(DASHBOARDS)
def test_dashboards_ask_for_metrics_that_exist(file: Path):
    queries = queries_of_dashboard(file)
    assert queries
    for query in queries:
        assert in_query(query) <= known_metrics(), query


@each_rule
def test_the_runbook_tells_the_class_apart_from_every_neighbour_of_the_rule(rule: Rule):
    text = (REPOSITORY / "runbooks" / f"{rule.stem}.md").read_text()
    apart = text.split("## Tell it apart from")[1].split("\n## ")[0]
    assert {stem for stem in rule.tell_apart if f"`{stem}`" not in apart} == set()


@by_stem(RUNBOOKS)
def test_runbooks_tell_apart_from_things_that_exist(file: Path):
    """A neighbour between backticks is a class, an own page, or a word that is no stem."""
    apart = file.read_text().split("## Tell it apart from")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in apart.splitlines() if line.startswith("| ")]
    named = {stem for cell in first_cells for stem in re.findall(r"`([a-z_]+)`", cell)}
    assert named <= set(FAMILY_OF) | {page.stem for page in RUNBOOKS}


def test_names_of_an_engine_occur_in_dialects_and_captures_only():
    """Everything else speaks the catalogue's names, so that a new engine touches one file."""
    allowed = re.compile(r"^(gpuwatch/dialects/|engine_shim/telemetry/vllm_page\.py$|tests/)")
    engine_metric = re.compile(r"\b(vllm|sglang|lmdeploy|llamacpp|trtllm):[a-z]")
    for file in tracked("*.py", "*.yml", "*.json", "*.md", "*.toml"):
        path = file.relative_to(REPOSITORY).as_posix()
        if not allowed.match(path):
            found = engine_metric.search(file.read_text())
            assert found is None, f"{path}: {found.group() if found else ''}"
