"""Span dialects: one data file an engine, found by its constant `SPANS`. The most telling sign decides which it is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache

from ....wire.otlp import SpanColumns, Wanted
from .dialect import SpanDialect, one_of

SUBJECT_ATTRIBUTES = (
    "service.instance.id", "k8s.pod.name", "service.name", "host.name", "container.id", "server.address", "server.port",
    "shim.rank", "dp_rank",
)  # fmt: skip
"""Resource attributes by which the engine that sent a span may be known; configured ones come on top."""


@cache
def span_dialects() -> tuple[SpanDialect, ...]:
    """Every dialect: vLLM first, whose span's name others took over with a sign of their own; conventions last."""
    found = []
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        dialect = getattr(importlib.import_module(f"{__name__}.{module}"), "SPANS", None)
        if isinstance(dialect, SpanDialect):
            found.append(dialect)
    return tuple(sorted(found, key=lambda d: (_is_general(d), d.name != "vllm", d.name)))


def wanted(resource: tuple[str, ...] = ()) -> Wanted:
    """What a reader must look for. `resource`: further attributes of resources."""
    dialects = span_dialects()
    numbers = {a for d in dialects for a in d.number_attributes()}
    texts = {a for d in dialects for a in d.text_attributes()} | {"error.type"}
    return Wanted(
        numbers={a.encode(): a for a in sorted(numbers)},
        texts={a.encode(): a for a in sorted(texts)},
        events=frozenset(d.retracted.encode() for d in dialects if d.retracted),
        resource=frozenset({*SUBJECT_ATTRIBUTES, *resource, *(a for d in dialects for a in d.resource)}),
    )


def detect(scope: str, resource: Mapping[str, str], spans: SpanColumns) -> SpanDialect | None:
    """The dialect of one scope's spans. The most telling sign decides, whoever's it is."""
    service = resource.get("service.name", "")
    names = {name.decode("utf-8", "replace") for name in spans.names[:64]}
    signs: tuple[Callable[[SpanDialect], bool], ...] = (
        lambda d: scope.startswith(d.scopes),
        lambda d: not resource.keys().isdisjoint(d.resource),
        lambda d: service.startswith(d.services),
        lambda d: not _is_general(d) and any(a in spans.numbers or a in spans.texts for a in d.marks),
        lambda d: not names.isdisjoint(d.stages),
        lambda d: any(one_of(d.roots).fullmatch(name) for name in names),
        lambda d: any(a in spans.numbers or a in spans.texts for a in d.marks),
    )
    return next((d for sign in signs for d in span_dialects() if sign(d)), None)


def _is_general(dialect: SpanDialect) -> bool:
    return not (dialect.scopes or dialect.services or dialect.resource)
