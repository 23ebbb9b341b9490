"""Command lines as facts: `--max-num-seqs 64` → `arg_max_num_seqs: 64`, with credentials never kept.

Values of arguments that look like secrets, credentials inside URLs, and bare words (which may be anything) are hidden
before anything else sees them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .facts import HIDDEN, MAX_LABELS, MAX_VALUE_CHARS, looks_secret

_URL_LOGIN = re.compile(r"(?<=://)[^/@\s]+@")
_LONG_SECRET = re.compile(r"(?:hf_|sk-|ghp_|AKIA|eyJ)[A-Za-z0-9_\-.]{8,}")


def safe_text(text: str) -> str:
    """The text without logins in URLs and without what is known to be a token, at most 256 characters."""
    return _LONG_SECRET.sub(HIDDEN, _URL_LOGIN.sub(f"{HIDDEN}@", text))[:MAX_VALUE_CHARS]


def argument_facts(command: Sequence[str]) -> dict[str, str]:
    """Options of a command line; flags without a value are `true`. At most 64."""
    facts: dict[str, str] = {}
    words = list(command[1:])
    at = 0
    while at < len(words) and len(facts) < MAX_LABELS:
        word = words[at]
        at += 1
        if not word.startswith("--") or len(word) < 3:
            continue
        key, equals, value = word[2:].partition("=")
        if not equals and at < len(words) and not _is_option(words[at]):
            value = words[at]
            at += 1
        elif not equals:
            value = "true"
        name = re.sub(r"[^a-z0-9_]", "_", key.lower())[:64]
        facts[f"arg_{name}"] = HIDDEN if looks_secret(name) else safe_text(value)
    return facts


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)
