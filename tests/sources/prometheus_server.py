"""A process with prometheus_client inside, as engines have it: `python prometheus_server.py KIND PORT`.

`two_routes`: vLLM's way, `/metrics` by a handler that ignores filters and `/metrics/` by the library's ASGI application.
`multiprocess`: the same with metrics of several processes, whose filter finds nothing. `dear`: whole pages of 20 ms of CPU.
"""

import sys
import time

import prometheus_client
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route

LATENCIES = ("time_to_first_token", "inter_token_latency", "request_time_per_output_token", "e2e_request_latency",
             "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time")  # fmt: skip
TOKENS = ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens", "iteration_tokens_total")
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
COUNTERS = ("num_preemptions", "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")
BUCKETS = tuple(0.01 * 1.4**n for n in range(21))


def fill(registry):
    """Some 450 series under vLLM's names, one rank; in multiprocess mode they go to files beside the registry."""
    kind = {"labelnames": ["engine", "model_name"], "registry": registry}
    for n, name in enumerate(GAUGES):
        Gauge(f"vllm:{name}", name, **kind).labels("0", "m").set(n)
    for name in COUNTERS:
        Counter(f"vllm:{name}", name, **kind).labels("0", "m").inc(100)
    success = Counter("vllm:request_success", "s", ["engine", "model_name", "finished_reason"], registry=registry)
    for reason in ("stop", "length", "abort", "error"):
        success.labels("0", "m", reason).inc(5)
    for name in (*(f"{n}_seconds" for n in LATENCIES), *TOKENS):
        histogram = Histogram(f"vllm:{name}", name, buckets=BUCKETS, **kind).labels("0", "m")
        for n in range(40):
            histogram.observe(0.01 * n)
    for n in range(80):
        Gauge(f"process_noise_{n}", "something else", registry=registry).set(n)


class Dear:
    """A collector that is 20 ms of work."""

    def collect(self):
        ends = time.thread_time() + 0.02
        while time.thread_time() < ends:
            pass
        return ()


def application(kind):
    """The application of this kind."""
    registry = CollectorRegistry()
    if kind == "multiprocess":
        fill(CollectorRegistry())
        multiprocess.MultiProcessCollector(registry)
    else:
        fill(registry)
    if kind == "dear":
        registry.register(Dear())

    async def whole(_request):
        return Response(generate_latest(registry), media_type="text/plain; version=0.0.4")

    slash = Mount("/metrics", prometheus_client.make_asgi_app(registry))
    return Starlette(routes=[Route("/metrics", whole), Route("/metrics/", whole) if kind == "dear" else slash])


if __name__ == "__main__":
    uvicorn.run(application(sys.argv[1]), host="127.0.0.1", port=int(sys.argv[2]), log_level="error", access_log=False)
