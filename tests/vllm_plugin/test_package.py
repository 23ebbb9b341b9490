"""The plugin is a package of its own: it installs alone, needs nothing, and brings nothing into vLLM's process."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.metric_names import REPOSITORY

PACKAGE = REPOSITORY / "vllm_plugin"
BROUGHT = """
import json, sys
before = set(sys.modules)
import gpuwatch_vllm.facts, gpuwatch_vllm.ring, gpuwatch_vllm.shapes, gpuwatch_vllm.steps
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))))
"""
FOUND = """
import json
from importlib.metadata import distribution, entry_points
(found,) = entry_points(group="vllm.stat_logger_plugins")
print(json.dumps([found.name, found.value, distribution("gpuwatch-vllm").requires]))
"""


def run(python, code, *flags, **env):
    asked = subprocess.run([python, *flags, "-c", code], capture_output=True, text=True, check=True, timeout=60,
                           env={"PATH": os.environ["PATH"], **env})  # fmt: skip
    return json.loads(asked.stdout)


def test_it_imports_the_standard_library_alone():
    assert run(sys.executable, BROUGHT, PYTHONPATH=str(PACKAGE)) == ["gpuwatch_vllm"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built without a network by the back end that the package names."""
    pytest.importorskip("hatchling", reason="the build back end is not installed here")
    folder = tmp_path_factory.mktemp("wheel")
    build = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=PACKAGE, check=True, capture_output=True, timeout=60)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {Path(name).parts[0] for name in archive.namelist()}
    assert inside == {"gpuwatch_vllm", wheel.name.split("-py3")[0] + ".dist-info"}


def test_it_installs_alone_into_an_empty_environment_and_vllm_would_find_it(wheel, tmp_path):
    """The environment has nothing but the interpreter, not even pip: what is unpacked there is all that it needs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True, timeout=60)
    python = str(tmp_path / "env" / "bin" / "python")
    site = run(python, "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))")
    zipfile.ZipFile(wheel).extractall(site)
    assert run(python, BROUGHT) == ["gpuwatch_vllm"]
    assert run(python, FOUND) == ["gpuwatch", "gpuwatch_vllm.plugin:StepRingLogger", None]
