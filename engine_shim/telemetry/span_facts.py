"""The attributes of a request's span: GenAI semantic conventions and vLLM's latency names. No text, no raw id.

Shared by the real exporter (spans.py) and by the wire form of a simulated run (otlp_wire.py).
"""

from __future__ import annotations

from ..request import PRIORITY_CLASSES, Request, Stage
from .milestones import first_wait

Attribute = str | int | float | list[str]

SPAN_NAME = "llm_request"
SCOPE = "engine_shim"


def request_attributes(request: Request, request_hash: int, model: str) -> dict[str, Attribute]:
    """Attributes of the parent span. Latencies in seconds; those that never happened are left out."""
    queued_s, scheduled_at = first_wait(request)
    facts: dict[str, Attribute] = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": model,
        "gen_ai.request.id": f"{request_hash:016x}",
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.usage.input_tokens": request.prompt_tokens,
        "gen_ai.usage.output_tokens": request.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": request.cached_tokens,
        "gen_ai.response.finish_reasons": [request.finish_reason],
        "gen_ai.latency.e2e": request.finished_at - request.arrived_at,
        "shim.preemptions": request.preemptions,
        "shim.recomputed_tokens": request.recomputed_tokens,
    }
    if any(stage == Stage.QUEUE for stage, _, _ in request.stages):
        facts["gen_ai.latency.time_in_queue"] = queued_s
    if request.first_token_at > 0:
        facts["gen_ai.latency.time_to_first_token"] = request.first_token_at - request.arrived_at
        facts["gen_ai.latency.time_in_model_prefill"] = request.first_token_at - scheduled_at
        facts["gen_ai.latency.time_in_model_decode"] = request.last_token_at - request.first_token_at
        facts["gen_ai.latency.time_in_model_inference"] = request.last_token_at - scheduled_at
    if request.priority:
        facts["shim.priority"] = PRIORITY_CLASSES[request.priority]
    if request.rejected_for:
        facts["shim.rejected_for"] = request.rejected_for
    if request.tenant:
        facts["shim.tenant"] = request.tenant[:64]
    return facts


def resource_attributes(engine: str, version: str, rank: int) -> dict[str, Attribute]:
    """What stands for the engine on every batch of spans."""
    return {"service.name": engine, "service.version": version, "shim.rank": rank}


def nanoseconds(t: float) -> int:
    """Unix nanoseconds of unix seconds, exact to the microsecond."""
    return round(t * 1e6) * 1000
