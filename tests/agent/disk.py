"""A disk that is full, for real: write(2) stops half-way or fails."""

import contextlib
import resource


@contextlib.contextmanager
def disk_of(limit):
    """No file of this process may grow beyond `limit` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
