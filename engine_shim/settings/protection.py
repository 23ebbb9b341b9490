"""Which settings of protection make sense. ValueError names the key and says what to change."""

from __future__ import annotations

from .keys import EngineKeys

MOST_PER_S = 1e6
LONGEST_S = 3600.0
MOST_ENTRIES = 100_000


def check_protection(settings: EngineKeys) -> None:
    """Everything that concerns protection."""
    limits = {
        "rate_limit_per_s": MOST_PER_S, "rate_limit_burst": MOST_PER_S, "max_concurrency": MOST_PER_S,
        "queue_target_s": LONGEST_S, "queued_tokens_target_s": LONGEST_S, "response_cache_entries": MOST_ENTRIES,
    }  # fmt: skip
    for key, most in limits.items():
        value = getattr(settings, key)
        if not 0 <= value <= most:
            raise ValueError(f"{key} must be between 0 (off) and {most:g}, not {value}")
    if settings.rate_limit_burst and not settings.rate_limit_per_s:
        raise ValueError("rate_limit_burst has no meaning without rate_limit_per_s; set it, or remove the burst")
