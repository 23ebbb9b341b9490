"""A condition in the log: once when it begins, once when it ends."""

from __future__ import annotations

import logging


class ChangeLog:
    """Logs a condition when it begins and when it ends, never in between. One per condition."""

    def __init__(self, logger: logging.Logger, name: str) -> None:
        self._logger = logger
        self._name = name
        self.problem = ""

    def say(self, problem: str) -> None:
        """`problem` is empty while all is well."""
        if problem and not self.problem:
            self._logger.warning("%s: %s", self._name, problem)
        elif self.problem and not problem:
            self._logger.info("%s: well again", self._name)
        self.problem = problem
