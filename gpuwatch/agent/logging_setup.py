"""Logging: stdlib, one JSON object a line on stderr. What repeats is counted in metrics and logged once a change."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

_encode = msgspec.json.encode
_MESSAGE_CHARS = 2000


class JsonFormatter(logging.Formatter):
    """A record as {"at", "level", "logger", "message"}; `at` is unix seconds."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; line feeds in foreign text are escaped by JSON, so nothing can forge a second line."""
        line = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:_MESSAGE_CHARS],
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-_MESSAGE_CHARS:]
        return _encode(line).decode()


def set_up(level: str = "info") -> None:
    """Log to stderr as JSON. Libraries speak from warning on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("gpuwatch").setLevel(level.upper())


@contextmanager
def quiet() -> Iterator[None]:
    """No log up to warnings while it lasts."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
