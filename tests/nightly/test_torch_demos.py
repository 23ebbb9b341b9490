"""The demo for real, whole: PyTorch, HTTP clients and the agent for a minute and a half or two each.

`python -m pytest -m nightly -n 0 tests/nightly/test_torch_demos.py`: one after the other, as each wants a core for itself.
"""

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.demo.run_cli import demo

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch (pip install 'gpuwatch[engine]')"),
]

FORMS = sorted((Path(__file__).parents[1] / "scenarios" / "torch").glob("*.toml"))


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.stem)
def test_the_real_engine_gets_the_verdict_that_its_form_expects(path: Path, tmp_path: Path):
    """The class at the top, and nothing at all for a healthy engine."""
    done = demo(path.stem, "--device", "torch", "--json", "--out", str(tmp_path / "out"), timeout_s=400)
    assert done.returncode == 0, done.stderr
    expected = tomllib.loads(path.read_text(encoding="utf-8"))["expect"]["class"]
    rules = [incident["rule"] for incident in json.loads(done.stdout)["incidents"]]
    assert (rules[:1] or ["none"]) == [expected]
