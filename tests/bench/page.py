"""Reading an engine's page, and what rendering it costs the engine."""

from __future__ import annotations

from itertools import count

from engine_shim.telemetry import EngineInfo, build_telemetry
from engine_shim.telemetry.vllm_page import VllmMetrics  # noqa: F401  (says early that the page is not there)
from tests.bench.measure import by_turns
from tests.bench.row import Row

FAMILIES, BUCKETS, WANTED_FAMILIES = 46, 24, 10
HOT = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
       "generation_tokens_total", "prompt_tokens_total")  # fmt: skip


def page(seed: int) -> bytes:
    """A page of the usual shape: histograms of 24 buckets with their help lines, 1,242 lines; values vary with the seed."""
    lines = []
    for family in range(FAMILIES):
        name = f"engine:latency_{family}_seconds"
        lines += [f"# HELP {name} A latency of some kind in seconds.", f"# TYPE {name} histogram"]
        labels = 'engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct"'
        lines += [f'{name}_bucket{{{labels},le="{0.001 * 2**b}"}} {float(seed + b)}' for b in range(BUCKETS - 1)]
        lines += [f"{name}_sum{{{labels}}} {seed * 0.37}", f"{name}_count{{{labels}}} {float(seed + BUCKETS)}"]
    return ("\n".join(lines) + "\n").encode()


def read() -> Row:
    """Ours against prometheus_client's parser, on pages that change."""
    from prometheus_client.parser import text_string_to_metric_families

    from gpuwatch.wire.exposition_plan import PageReader

    wanted = {
        f"engine:latency_{f}_seconds{end}" for f in range(WANTED_FAMILIES) for end in ("_bucket", "_sum", "_count")
    }
    pages = [page(seed) for seed in range(8)]
    reader, turn, other = PageReader(wanted), count(), count()
    found = len(reader.read(pages[0]).values)

    def ours() -> None:
        reader.read(pages[next(turn) % len(pages)])

    def naive() -> None:
        for family in text_string_to_metric_families(pages[next(other) % len(pages)].decode()):
            for sample in family.samples:
                sample.name in wanted  # noqa: B015

    now, before = by_turns(ours, naive)
    lines = pages[0].count(b"\n")
    return Row("ms", 0.15, now * 1e3, before * 1e3, ratio_budget=150,
        note=f"{found} wanted values of {lines} lines; naive is prometheus_client",
    )  # fmt: skip


def scraped() -> Row:
    """The engine's side of a scrape: six names against the whole page, rendered by the bundled engine."""
    telemetry = build_telemetry(
        EngineInfo("shim", "7b", "0", 8192, 16, 64, 131_072, 0.0),
        lambda: 0.0,
        salt=b"bench",
        otlp_endpoint="",
        vllm=True,
    )
    names = [f"vllm:{name}" for name in HOT]
    now, whole = by_turns(lambda: telemetry.render(names), lambda: telemetry.render(None))
    return Row("ms", 1.0, now * 1e3, whole * 1e3,
        note="the bundled engine's page, six names against all; a real vLLM renders more series",
    )  # fmt: skip
