"""What a driver may be believed: values within their signal's bounds. Everything else is missing, and counted."""

from __future__ import annotations

import math

from ...catalog import LARGEST, check_value

_CLAMPED_BELOW = 1.2


def drop_impossible(values: dict[str, float]) -> int:
    """Take impossible values out, and return how many those were. A ratio a little above one becomes one."""
    dropped = 0
    for name, value in tuple(values.items()):
        if 1 < value <= _CLAMPED_BELOW and name.endswith("_ratio"):
            values[name] = 1.0
        elif not (value <= LARGEST and check_value(name, value)):
            del values[name]
            dropped += not math.isnan(value)
    return dropped
