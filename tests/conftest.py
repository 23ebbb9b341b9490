"""What all tests share."""

from collections.abc import Iterator

import psutil
import pytest

LONGEST_BYTES_IN_AN_ID = 60


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name binary content by its length: what is in it may differ in the next process (gzip writes the second into it)."""
    if not isinstance(val, bytes | bytearray):
        return None
    plain = len(val) <= LONGEST_BYTES_IN_AN_ID and all(32 <= byte <= 126 or byte in b"\t\r\n" for byte in val)
    return None if plain else f"{argname} of {len(val)} bytes"


@pytest.fixture(autouse=True)
def psutil_as_it_was() -> Iterator[None]:
    """A source points psutil, a library of the whole process, at its own /proc: other tests want the real one."""
    before = psutil.PROCFS_PATH
    yield
    psutil.PROCFS_PATH = before
