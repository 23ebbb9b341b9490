"""Tests with a loop run on asyncio, as the agent does."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
