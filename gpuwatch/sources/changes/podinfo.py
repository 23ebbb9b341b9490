"""What Kubernetes says of the agent's pod through the downward API: names, node, image, template hash, labels that matter.

Files of a volume (`/etc/podinfo/labels`, `annotations`, `name`, `namespace`, `node`, `image`), which Kubernetes renews
while the pod runs, and `POD_*` variables. An engine in the same pod shares all of it. The API has no image digest: an image
that is pinned by digest can be passed in the pod's template, as POD_IMAGE or as the annotation `gpuwatch/image`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .secrets import safe_text

_BYTES = 64 * 1024
_SINGLE = ("name", "namespace", "uid", "node", "image")
_LABELS = {
    "pod-template-hash": "pod_template_hash",
    "controller-revision-hash": "pod_template_hash",
    "app.kubernetes.io/version": "app_version",
    "app.kubernetes.io/name": "app",
    "helm.sh/chart": "chart",
}
_ANNOTATIONS = {"gpuwatch/image": "pod_image", "kubectl.kubernetes.io/restartedAt": "pod_restarted_at"}
CHANGING = ("pod_image", "pod_template_hash", "app_version", "chart", "pod_restarted_at")
"""What differs after a rollout. Name, node and uid differ after any rescheduling, which changes nothing by itself."""


def pod_facts(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What is told; empty outside Kubernetes, or without the downward API."""
    found: dict[str, str] = {}
    for name in _SINGLE:
        text = environ.get(f"POD_{name.upper()}", "") or _read(folder / name).strip()
        if text:
            found[f"pod_{name}"] = safe_text(text)
    node = environ.get("NODE_NAME", "")
    if node:
        found.setdefault("pod_node", safe_text(node))
    for file, wanted in (("labels", _LABELS), ("annotations", _ANNOTATIONS)):
        for key, value in _pairs(_read(folder / file)).items():
            if key in wanted and value:
                found.setdefault(wanted[key], safe_text(value))
    return found


def _pairs(text: str) -> dict[str, str]:
    """Lines `key="value"` with Go's escapes; lines of another form are left out."""
    found = {}
    for line in text.splitlines():
        key, equals, quoted = line.partition("=")
        if equals and len(quoted) >= 2 and quoted[0] == quoted[-1] == '"':
            found[key] = quoted[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""  # not mounted
