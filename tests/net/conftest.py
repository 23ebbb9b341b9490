"""Inputs are played once a module, whatever is asked of them."""

import pytest

from tests.net import inputs
from tests.net.inputs import Ran


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest) -> tuple[str, Ran]:
    """A key, and what came of it."""
    return request.param, inputs.run(request.param)
