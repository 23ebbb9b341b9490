"""What the docs repeat is what the code says, and the golden verdict is one that the published schema accepts."""

import json
import re
from pathlib import Path

import jsonschema
import msgspec
import pytest

from gpuwatch.model import Verdict
from scripts.docs import REPOSITORY, SCHEMA, outdated
from tests.test_complete import tracked

GOLDEN = Path(__file__).parent / "golden" / "verdict.json"


def test_generated_parts_of_the_docs_are_current():
    stale = [page.relative_to(REPOSITORY).as_posix() for page in outdated()]
    assert stale == [], "run: python -m scripts.docs"


def test_the_golden_verdict_satisfies_the_published_schema():
    """Checked by an independent validator: what we publish is what a consumer can rely on."""
    jsonschema.validate(json.loads(GOLDEN.read_bytes()), json.loads(SCHEMA.read_text()))


def test_the_published_schema_refuses_a_broken_verdict():
    verdict = json.loads(GOLDEN.read_bytes())
    verdict["incidents"][0]["severity"] = "catastrophe"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(verdict, json.loads(SCHEMA.read_text()))


def test_the_golden_verdict_survives_reading_and_writing():
    """Nothing in it is unknown to the types, so that nothing is lost on the way."""
    text = GOLDEN.read_bytes()
    again = json.loads(msgspec.json.encode(msgspec.json.decode(text, type=Verdict)))
    assert again == json.loads(text)


def test_every_relative_link_leads_somewhere():
    links = (
        (page, to) for page in tracked("*.md") for to in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    )
    broken = [
        f"{page.relative_to(REPOSITORY)} → {to}"
        for page, to in links
        if "://" not in to and not (page.parent / to).exists()
    ]
    assert broken == []
