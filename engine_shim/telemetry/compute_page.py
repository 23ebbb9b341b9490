"""How tokens are computed, on the engine's page: kernels that ran, and what came of drafts.

Both speak of what happened, not of what was asked for: a kernel that is missing here shows as the fallback that ran in
its place, beside the weight type that was configured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..engine.speculative import SpeculationCounts
from ..model.quantized.calls import KernelCalls
from ..settings.engine import EngineSettings
from .exposition import Family, by_label, pairs, single


def compute_families(
    settings: EngineSettings, calls: KernelCalls | None, counts: Callable[[], SpeculationCounts]
) -> list[Family]:
    """What an engine with these settings has to say; `calls` is None where products are not told apart."""
    families = [] if calls is None else kernel_families(calls, settings.weights)
    return families if settings.speculative == "none" else [*families, *speculation_families(counts)]


def vllm_families(settings: EngineSettings, model: str, counts: Callable[[], SpeculationCounts]) -> list[Family]:
    """What vLLM shows of it: drafts, not kernels."""
    if settings.speculative == "none":
        return []
    return speculation_families(counts, "vllm", pairs({"engine": "0", "model_name": model}))


def kernel_families(calls: KernelCalls, weights: str) -> list[Family]:
    """Products by kernel. `weights` is the setting."""
    name = "shim:linear_kernel_info"

    def ran() -> Iterable[str]:
        kernels = sorted(kernel for kernel, count in dict(calls.by_kernel).items() if count)
        return [f"{name}{{{pairs({'kernel': kernel, 'weights': weights})}}} 1" for kernel in kernels]

    return [
        by_label(
            "shim:linear_calls_total", "counter",
            "Products of linear layers computed, by the kernel that ran.", "kernel", lambda: dict(calls.by_kernel),
        ),
        Family(name, "gauge", "Kernels that have run, and the weight type that was asked for.", ran),
    ]  # fmt: skip


_COUNTERS: dict[str, tuple[str, Callable[[SpeculationCounts], float]]] = {
    "num_drafts": ("Drafts checked.", lambda counts: counts.drafts),
    "num_draft_tokens": ("Draft tokens checked.", lambda counts: counts.draft_tokens),
    "num_accepted_tokens": ("Draft tokens that the model agreed with.", lambda counts: counts.accepted_tokens),
}


def speculation_families(
    counts: Callable[[], SpeculationCounts], prefix: str = "shim", labels: str = ""
) -> list[Family]:
    """Drafts, their tokens, and how many were accepted, in all and by position in the draft (from 0)."""

    def reader(read: Callable[[SpeculationCounts], float]) -> Callable[[], float]:
        return lambda: read(counts())

    def by_position() -> dict[str, float]:
        return {str(position): count for position, count in enumerate(counts().accepted_at)}

    families = [
        single(f"{prefix}:spec_decode_{name}_total", "counter", text, reader(read), labels)
        for name, (text, read) in _COUNTERS.items()
    ]
    families.append(
        by_label(
            f"{prefix}:spec_decode_num_accepted_tokens_per_pos_total", "counter",
            "Draft tokens that the model agreed with, by position in the draft.", "position", by_position,
            labels,
        )
    )  # fmt: skip
    return families
