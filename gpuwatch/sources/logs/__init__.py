"""Engines' logs as a source: live from a file or a pipe, and offline. Numbers and kinds come out, never text."""

from __future__ import annotations

from .read import LogRead, read_log
from .source import LogSource

__all__ = ["LogRead", "LogSource", "read_log"]
