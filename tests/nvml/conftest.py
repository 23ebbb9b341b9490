"""A scripted library under the real binding, and a source that looks at it."""

import pytest

from tests.nvml.looking import Looker
from tests.nvml.scripted import ScriptedNvml


@pytest.fixture
def install(monkeypatch):
    """Puts scripted devices under the binding; returns the library and a looker."""
    lookers = []

    def make(*gpus, **more):
        nvml = ScriptedNvml(*gpus).install(monkeypatch)
        lookers.append(Looker(**more))
        return nvml, lookers[-1]

    yield make
    for looker in lookers:
        looker.close()
