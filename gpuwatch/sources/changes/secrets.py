"""Credentials in texts that come from outside: found by the name beside them or by their own form, and never kept.

What is hidden: values beside names such as `api-key`, logins and queries of URLs, `Bearer …`, tokens whose form gives them
away (hf_…, sk-…, AKIA…, JWTs), private keys, and long runs of letters and digits that no word has.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

MAX_VALUE_CHARS = 256
HIDDEN = "<hidden>"

_MOST_CHARS = 64 * 1024
_SECRET = re.compile(
    r"(?:^|[^a-z])(?:.*_)?(?:api[-_]?keys?|(?:access|secret|private|auth|master)[-_]?(?:keys?|tokens?)|keys?|tokens?|secrets?"
    r"|passw(?:or)?ds?|passphrase|pwd|pin|credentials?|auth(?:orization)?|bearer|cookies?|signature|sig)$"
)
_NOT_SECRET = re.compile(
    r"(?:max|num|block|capacity|batched|prefill|chunk|size|total|prompt|output|cached?|kv|watermark|budget)"
    r"(?:[-_a-z0-9]*)[-_](?:tokens?|keys?)$"
)
_SECRET_AFTER_ALL = re.compile(r"api|access|secret|private|auth")
_URL = re.compile(r"[a-z][a-z0-9+.\-]{0,20}://[^\s\"'<>]+", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=://)[^/\s\"'<>]*@")
_NAMED = re.compile(r"([A-Za-z_][\w.\-]{0,80})([\"']?\s*[=:]\s*[\"']?)([^\s\"',;}&\])]+)")
_SCHEME = re.compile(r"\b(bearer|basic|digest)(\s+)[^\s\"',;]+", re.IGNORECASE)
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*-----.*", re.DOTALL)
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"(?:(?:hf|api_org|gh[oprsu]|github_pat|gsk|npm|dckr_pat|sk|pk|rk)_|(?:sk|glpat|pypi|xox[abeprs]|nvapi)-|(?:ya29|SG)\.|AIza)"
    r"[A-Za-z0-9_\-.]{8,}[A-Za-z0-9_\-]"
    r"|(?:AKIA|ASIA)[A-Z0-9]{8,}|eyJ[A-Za-z0-9_\-]{5,}(?:\.[A-Za-z0-9_\-=]*){0,2})"
)
_RUN = re.compile(r"(?<![A-Za-z0-9])(?<!sha256:)[A-Za-z0-9]{24,}")  # an image's digest is public


def looks_secret(key: str) -> bool:
    """True where a label or argument of this name may hold a credential (`api-key`, `hf_token`, not `max_tokens`)."""
    name = key.lower().lstrip("-").removeprefix("arg_")
    if not _SECRET.search(name):
        return False
    return not _NOT_SECRET.match(name) or bool(_SECRET_AFTER_ALL.search(name))


def safe_text(text: str) -> str:
    """The text without what may be a credential, at most 256 characters of it."""
    text = _PRIVATE_KEY.sub(HIDDEN, text[:_MOST_CHARS])
    text = _URL.sub(lambda found: safe_url(found[0]), text)
    text = _LOGIN.sub(f"{HIDDEN}@", text)
    text = _NAMED.sub(_hide_named, text)
    text = _SCHEME.sub(rf"\1\2{HIDDEN}", text)
    text = _TOKEN.sub(_hide_token, text)
    return _RUN.sub(_hide_run, text)[:MAX_VALUE_CHARS]


def safe_url(url: str) -> str:
    """Scheme, host and port, with the path where it holds no credential; login and query are hidden."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return HIDDEN
    login = f"{HIDDEN}@" if "@" in parts.netloc else ""
    rest = f"?{HIDDEN}" if parts.query or parts.fragment else ""
    return f"{parts.scheme}://{login}{host}{parts.path}{rest}"


def is_random(word: str) -> bool:
    """Whether a word holds a long run of letters and digits, as keys and hashes do and names do not."""
    return any(_is_random_run(run) for run in _RUN.findall(word))


def _hide_named(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{HIDDEN}" if looks_secret(found[1]) else found[0]


def _hide_token(found: re.Match[str]) -> str:
    """`sk-learn` is a word: a token has digits, or both cases, or is long."""
    body = found[0]
    mixed = any(c.isdigit() for c in body) or (body.lower() != body and body.upper() != body)
    return HIDDEN if mixed or len(body) > 13 else body


def _hide_run(found: re.Match[str]) -> str:
    return HIDDEN if _is_random_run(found[0]) else found[0]


def _is_random_run(run: str) -> bool:
    digits = sum(c.isdigit() for c in run)
    return 0 < digits < len(run)
