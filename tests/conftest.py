"""What all tests share."""

from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def psutil_as_it_was() -> Iterator[None]:
    """A source points psutil, a library of the whole process, at its own /proc: other tests want the real one."""
    before = psutil.PROCFS_PATH
    yield
    psutil.PROCFS_PATH = before
