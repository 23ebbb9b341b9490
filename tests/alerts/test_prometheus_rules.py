"""The alert files, judged by the real promtool: they load; each fires, stays silent and resolves as its tests say."""

import shutil
import subprocess
from pathlib import Path

import pytest

ALERTS = Path(__file__).parents[2] / "alerts"
RULE_FILES = sorted(p for p in ALERTS.glob("*.yml") if p.name != "alertmanager.example.yml")
TEST_FILES = sorted((ALERTS / "tests").glob("*.yml"))

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def promtool(*arguments: str) -> str:
    """Run promtool and return what it said; an exit code other than 0 fails with its words."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_alert_file_passes_promtool_check_rules():
    assert len(RULE_FILES) >= 8, "the classes, the agent and the SLO"
    promtool("check", "rules", *map(str, RULE_FILES))


@pytest.mark.parametrize("file", TEST_FILES, ids=lambda p: p.stem)
def test_every_alert_fires_stays_silent_and_resolves_as_written(file: Path):
    assert "SUCCESS" in promtool("test", "rules", str(file))


def test_promtool_would_notice_an_alert_that_does_not_fire(tmp_path: Path):
    """The tests above can fail: the same expectations against an alert with another threshold do."""
    rules = (ALERTS / "overload.yml").read_text().replace("> 0", "> 1")
    (tmp_path / "overload.yml").write_text(rules)
    (tmp_path / "tests").mkdir()
    shutil.copy(ALERTS / "tests" / "overload.yml", tmp_path / "tests")
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "tests" / "overload.yml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
