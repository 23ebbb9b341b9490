"""Puts pages together again from samples: everything of one target with one time stamp was one page.

Labels that Prometheus added (job, instance, pod …) are taken off, and what it renamed to `exported_…` gets its name back, so
that the page is what the exporter wrote. Two series that become equal by that (two scrapers of one target) count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .client import Samples

TARGET_LABELS = frozenset({
    "job", "instance", "pod", "namespace", "container", "endpoint", "service", "node", "cluster", "prometheus",
    "prometheus_replica", "replica", "region", "zone", "environment", "env", "app", "pod_template_hash", "statefulset",
    "deployment", "kubernetes_namespace", "kubernetes_pod_name", "kubernetes_node", "nodename", "host", "hostname",
    "metrics_path", "scrape_job", "component", "role",
})  # fmt: skip
"""Labels of a target as service discovery and relabelling name them."""


def pages(samples: Iterable[Samples], kept: frozenset[str] = frozenset()) -> Iterator[tuple[float, bytes]]:
    """(unix seconds, page) in the order of time. `kept`: target labels that the page's reader needs."""
    by_time: dict[float, list[str]] = {}
    heads: set[str] = set()
    for one in samples:
        head = _head(one.labels, kept)
        if head in heads:
            continue
        heads.add(head)
        for at, value in zip(one.at, one.values, strict=True):
            by_time.setdefault(at, []).append(f"{head} {value}")
    for at in sorted(by_time):
        yield at, ("\n".join(by_time[at]) + "\n").encode()


def _head(labels: dict[str, str], kept: frozenset[str]) -> str:
    own: dict[str, str] = {}
    for name, value in labels.items():
        if name.startswith("exported_"):
            own[name.removeprefix("exported_")] = value
    for name, value in labels.items():
        if name != "__name__" and not name.startswith("exported_") and (name not in TARGET_LABELS or name in kept):
            own.setdefault(name, value)
    inner = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(own.items()))
    return f"{labels.get('__name__', '')}{{{inner}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
