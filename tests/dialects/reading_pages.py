"""Reads a page as the agent does and lays what it says out flat, so that tests can name what they expect."""

from pathlib import Path

from gpuwatch.sources.page.engine_page import EnginePage

CAPTURES = Path(__file__).parent.parent / "captures"


def captured(name):
    """The bytes of a capture, named without its ending."""
    return (CAPTURES / f"{name}.txt").read_bytes()


def flat(report):
    """Signals of each rank by number."""
    ranks = {}
    for frame in report.frames:
        ranks.setdefault(frame.subject.rank, {}).update(zip(frame.names, frame.values[0].tolist(), strict=True))
    return ranks


def read(body, dialect="auto", at=1.0):
    """Signals of each rank, from one look."""
    return flat(EnginePage("e", dialect).read(body if isinstance(body, bytes) else body.encode(), at))


def page_of(*lines):
    """A page of these lines."""
    return ("\n".join(lines) + "\n").encode()


def facts_of(report):
    """What each rank says of itself."""
    return {info.subject.rank: info.labels for info in report.info}
