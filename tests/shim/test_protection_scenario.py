"""Protection and KV layouts from a scenario file: the same keys, in virtual time, on the page that an agent reads."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from engine_shim.demand.scenario import ScenarioError, load_scenario
from engine_shim.simulation.assemble import simulate

SCENARIO = """
about = "Twice what the engine can do, from two tenants who wait a second and a half."
duration_s = 40

[engine]
model = "7b"
max_num_seqs = 24
kv_pool_tokens = 40_000
prefix_cache = false
kv_layout = "contiguous"
reserve = "prompt"
rate_limit_per_s = 20
queue_target_s = 1.0
deadline_rejection = true

[[load]]
rho = 2.0
prompt_tokens = 500
output_tokens = { uniform = [50, 250] }
deadline_s = 1.5
tenant = "a"

[[load]]
name = "greedy"
rate_per_s = 40
prompt_tokens = 16
output_tokens = 2
tenant = "b"

[expect]
class = "none"
"""


def pages_and_steps(text: str, tmp_path: Path) -> tuple[list[str], list[dict[str, Any]]]:
    """The engine's pages and blocks of steps of a run."""
    path = tmp_path / "protected.toml"
    path.write_text(text)
    out = io.BytesIO()
    simulate(load_scenario(path, "h100"), out, device="h100", seed=1)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    pages = [line["body"] for line in lines if line.get("src") == "page"]
    return pages, [line["cols"] for line in lines if line.get("src") == "steps"]


def value(page: str, name: str) -> float:
    """The value of a series, by the beginning of its line."""
    found = re.search(rf"^{re.escape(name)}.*? (\S+)$", page, re.MULTILINE)
    assert found, name
    return float(found[1])


def rejected(page: str, reason: str) -> float:
    """Refusals for a reason."""
    [line] = [x for x in page.splitlines() if x.startswith("shim:requests_rejected_total{") and f'"{reason}"' in x]
    return float(line.rsplit(" ", 1)[1])


def test_a_scenario_switches_protection_on_and_the_page_tells_early_from_late(tmp_path: Path) -> None:
    """One tenant breaks its rate, the other's requests are too many to be in time; each has its own count."""
    pages, blocks = pages_and_steps(SCENARIO, tmp_path)
    last = pages[-1]
    assert rejected(last, "rate_limited") > 500
    assert rejected(last, "deadline") + rejected(last, "queue_full") > 50
    assert rejected(last, "too_long") == 0
    assert value(last, "shim:service_rate_requests_per_second") > 5
    assert value(last, "shim:queue_limit_requests") > 5
    assert value(last, "shim:expected_wait_seconds") >= 0
    assert "shim:queue_limit_prompt_tokens" not in last
    assert all(0 <= value(p, "shim:kv_external_fragmentation_ratio") <= 1 for p in pages if "external" in p)
    largest = [n for block in blocks for n in block["kv_largest_free_blocks"]]
    assert max(largest) > min(largest) >= 0


def test_an_engine_without_these_settings_shows_none_of_it(tmp_path: Path) -> None:
    """No series, no column: what is off is absent, not zero."""
    keys = ("kv_layout", "rate_limit_per_s", "queue_target_s", "deadline_rejection", "prefix_cache")
    plain = "\n".join(line for line in SCENARIO.splitlines() if not line.startswith(keys))
    pages, blocks = pages_and_steps(plain.replace("duration_s = 40", "duration_s = 5"), tmp_path)
    assert not re.search("external|rate_limited|deadline|service_rate|queue_limit|degraded", pages[-1])
    assert all("kv_largest_free_blocks" not in block for block in blocks)


@pytest.mark.parametrize("value", ["0", "-1", "1e9"])
def test_a_deadline_that_is_no_time_names_the_key(value: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(SCENARIO.replace("deadline_s = 1.5", f"deadline_s = {value}"))
    with pytest.raises(ScenarioError, match=r"load\[0\].deadline_s: must be above 0"):
        load_scenario(path, "h100")
