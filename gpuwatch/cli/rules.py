"""The incident classes for people: `gpuwatch rules [STEM]`."""

from __future__ import annotations

import inspect
import sys
import textwrap
from typing import Any

import msgspec

from ..rules import Rule, load_rules


def show(stem: str | None, as_json: bool) -> str:
    """All classes, or one. KeyError with a message for a stem that is none."""
    rules = load_rules()
    if stem is not None and stem not in rules:
        raise KeyError(f"no class {stem!r}; known: {', '.join(rules)}")
    chosen = list(rules.values()) if stem is None else [rules[stem]]
    if as_json:
        found = [_facts(rule) for rule in chosen]
        return msgspec.json.encode(found if stem is None else found[0]).decode() + "\n"
    return _table(chosen) if stem is None else _page(chosen[0])


def _facts(rule: Rule) -> dict[str, Any]:
    return {
        "rule": rule.stem,
        "family": rule.family,
        "title": rule.title,
        "alert": rule.alert_name,
        "severity": rule.severity,
        "for_s": rule.for_s,
        "resolve_s": rule.resolve_s,
        "needs": rule.needs,
        "opens_eyes": rule.opens_eyes,
        "params": msgspec.to_builtins(rule.params()),
        "explains": rule.explains,
        "tell_apart": rule.tell_apart,
        "action": rule.action,
    }


def _table(rules: list[Rule]) -> str:
    width = max(len(rule.stem) for rule in rules)
    family = max(len(rule.family) for rule in rules)
    return "".join(f"{rule.stem:<{width}}  {rule.family:<{family}}  {rule.title}\n" for rule in rules)


def _page(rule: Rule) -> str:
    about = inspect.getdoc(sys.modules[rule.check.__module__]) or ""
    params = msgspec.to_builtins(rule.params())
    rows = [
        ("family", rule.family),
        ("alert", rule.alert_name),
        ("needs", ", ".join(rule.needs)),
        ("to see", rule.opens_eyes),
        ("holds", f"{rule.for_s:g} s before it opens, {rule.resolve_s:g} s before it is resolved"),
        ("explains", ", ".join(rule.explains) or "-"),
        ("not", ", ".join(rule.tell_apart) or "-"),
        ("action", rule.action),
    ]
    lines = [rule.stem, "", about, ""]
    for name, value in rows:
        lines += textwrap.wrap(value, 100, initial_indent=f"{name:>9}  ", subsequent_indent=" " * 11)
    lines += ["", f"[rules.{rule.stem}]"]
    lines += [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in params.items()]
    return "\n".join(lines) + "\n"
