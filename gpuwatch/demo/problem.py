"""What ends a demo early: one message for the user, exit code 2."""

from __future__ import annotations


class DemoError(Exception):
    """A scenario, device, folder or engine that cannot be used. The message says what, and what would help."""
