"""What the scheduling policies do to who waits, and for how long, on a modelled H100 with a 7B model.

    python -m engine_shim.studies.policies

Four loads, each on the policies that it is about. Times are of the middle of a run: requests that arrived after its
warm-up. A gap is the time between two tokens of a request that decodes all the while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..request import Request, Stage
from .played import Played, play_load

Table = dict[str, Any]
BASE: Table = {"model": "7b", "max_num_seqs": 48, "kv_pool_tokens": 300_000, "reserve": "prompt", "prefix_cache": False}

# -- priority classes ----------------------------------------------------------------------------------------------------

INTERACTIVE: Table = {
    "name": "chat", "rate_per_s": 3.0,
    "prompt_tokens": {"lognormal": 1200, "sigma": 0.6, "min": 50, "max": 6000}, "output_tokens": {"uniform": [50, 250]},
}  # fmt: skip
BATCH: Table = {
    "name": "jobs", "arrivals": "closed", "concurrency": 96, "priority": "batch",
    "prompt_tokens": {"uniform": [1000, 8000]}, "output_tokens": {"uniform": [100, 600]},
}  # fmt: skip
SMALL_STEPS: Table = {"prefill_step_share": 0.125}
CLASSES: dict[str, tuple[Table, list[Table]]] = {
    "chat alone": (SMALL_STEPS, [INTERACTIVE]),
    "fifo": ({}, [INTERACTIVE, BATCH]),
    "fifo, prefill_step_share 0.125": (SMALL_STEPS, [INTERACTIVE, BATCH]),
    "priority, ageing 60 s": ({"scheduling": "priority"}, [INTERACTIVE, BATCH]),
    "priority, ageing 60 s, prefill_step_share 0.125": (
        {"scheduling": "priority", **SMALL_STEPS},
        [INTERACTIVE, BATCH],
    ),
}

# More chat than the engine can serve: only ageing lets jobs through.
FLOOD: Table = INTERACTIVE | {"rate_per_s": 24.0}
FEW_JOBS: Table = BATCH | {"concurrency": 4}
AGEING: dict[str, tuple[Table, list[Table]]] = {
    f"priority, ageing {ageing_s:.0f} s": ({"scheduling": "priority", "ageing_s": ageing_s}, [FLOOD, FEW_JOBS])
    for ageing_s in (10.0, 30.0, 3600.0)
}

# -- the prefill budget --------------------------------------------------------------------------------------------------

WRITERS: Table = {
    "name": "writers", "arrivals": "closed", "concurrency": 40, "prompt_tokens": 300, "output_tokens": 4000,
}  # fmt: skip
LONG: Table = {
    "name": "long", "arrivals": "uniform", "rate_per_s": 0.1, "prompt_tokens": 32_000, "output_tokens": 20,
}  # fmt: skip
BUDGETS: dict[str, Table] = {
    "prompts whole": {"chunked_prefill": False},
    "chunks of 8192": {},
    "max_chunk_tokens 2048": {"max_chunk_tokens": 2048},
    "prefill_step_share 0.03": {"prefill_step_share": 0.03},
    "prefill_step_seconds 0.016": {"prefill_step_seconds": 0.016},
}

# -- passing a blocked head ----------------------------------------------------------------------------------------------

SMALL: Table = {
    "name": "small", "rate_per_s": 14.0, "prompt_tokens": {"uniform": [200, 1500]}, "output_tokens": {"uniform": [60, 300]},
}  # fmt: skip
LARGE: Table = {"name": "large", "rate_per_s": 0.12, "prompt_tokens": 20_000, "output_tokens": 100}
TIGHT: Table = BASE | {"kv_pool_tokens": 30_000}
PASSING: dict[str, Table] = {
    "fifo": {},
    "bypass": {"admission": "bypass"},
    "bypass, fifo_wait_limit 20 s": {"admission": "bypass", "scheduling": "fifo_wait_limit", "wait_limit_s": 20.0},
    "bypass, fifo_wait_limit 5 s": {"admission": "bypass", "scheduling": "fifo_wait_limit", "wait_limit_s": 5.0},
}

# -- shortest prompt -----------------------------------------------------------------------------------------------------

MIXED: Table = {
    "name": "mixed", "arrivals": "gamma", "cv": 3.0, "rate_per_s": 5.5, "output_tokens": {"uniform": [20, 150]},
    "prompt_tokens": {"mix": [
        {"share": 0.8, "lognormal": 800, "sigma": 0.7, "min": 50, "max": 4000}, {"share": 0.2, "uniform": [8000, 24_000]},
    ]},
}  # fmt: skip
SHORTEST: dict[str, Table] = {
    "fifo": {},
    "shortest_prompt": {"scheduling": "shortest_prompt"},
    "shortest_prompt, wait_limit_s 10": {"scheduling": "shortest_prompt", "wait_limit_s": 10.0},
}


def of_stream(played: Played, name: str, warm_up_s: float) -> list[Request]:
    """Finished requests of one stream that arrived after the warm-up."""
    return [r for r in played.served() if r.id.startswith(f"{name}-") and r.arrived_at >= played.start + warm_up_s]


def first_token_s(requests: Iterable[Request]) -> np.ndarray:
    """Times to first token; empty if nobody was served."""
    return np.array([r.first_token_at - r.arrived_at for r in requests])


def waits_s(requests: Iterable[Request]) -> np.ndarray:
    """Waits before the first admission."""
    return np.array([next(end - start for stage, start, end in r.stages if stage is Stage.QUEUE) for r in requests])


def longest_wait_s(played: Played, name: str) -> float:
    """The longest wait of the stream's requests, those included that still waited at the end; NaN if it had none."""
    now = played.start + played.seconds
    still = [now - r.arrived_at for r in played.waiting if r.id.startswith(f"{name}-")]
    return max([*waits_s(of_stream(played, name, 0.0)), *still], default=np.nan)


def gaps_s(played: Played, warm_up_s: float) -> np.ndarray:
    """Gaps between tokens of whoever decodes all the while."""
    steps = played.steps
    ended = steps["ended_at"][(steps["decode_tokens"] > 0) & (steps["begun_at"] >= played.start + warm_up_s)]
    return np.diff(ended)


def play_classes(case: tuple[Table, list[Table]], seconds: float) -> Played:
    """One row of the table of priority classes."""
    settings, loads = case
    return play_load(BASE | settings, loads, seconds=seconds)


def classes_table(cases: dict[str, tuple[Table, list[Table]]], seconds: float = 240.0, warm_up_s: float = 60.0) -> str:
    """Chat and jobs on one engine. Longest waits include those that still waited at the end."""
    head = (
        "policy",
        "chat TTFT P50 s",
        "P95 s",
        "× alone",
        "longest wait s",
        "jobs done /s",
        "longest wait of a job s",
    )
    rows, alone = [], np.nan
    for name, case in cases.items():
        played = play_classes(case, seconds)
        chat = first_token_s(of_stream(played, "chat", warm_up_s))
        jobs = of_stream(played, "jobs", 0.0)
        p50, p95 = np.percentile(chat, (50, 95))
        alone = p95 if name == "chat alone" else alone
        longest = [_s(longest_wait_s(played, stream)) for stream in ("chat", "jobs")]
        done = f"{len(jobs) / seconds:.2f}"
        rows.append((name, f"{p50:.3f}", f"{p95:.3f}", _ratio(p95 / alone), longest[0], done, longest[1]))
    return _markdown(head, rows)


def budget_table(seconds: float = 120.0, warm_up_s: float = 20.0) -> str:
    """40 requests decode, and every 10 s comes a prompt of 32,000 tokens."""
    head = ("prefills", "gap median ms", "P99 ms", "longest ms", "longest / median", "TTFT of 32k s")
    rows = []
    for name, settings in BUDGETS.items():
        played = play_load(BASE | settings, [WRITERS, LONG], seconds=seconds)
        gaps = 1e3 * gaps_s(played, warm_up_s)
        median, p99, longest = np.median(gaps), np.percentile(gaps, 99), gaps.max()
        ttft = first_token_s(of_stream(played, "long", 0.0)).mean()
        rows.append((name, f"{median:.1f}", f"{p99:.1f}", f"{longest:.1f}", f"{longest / median:.1f}", f"{ttft:.2f}"))
    return _markdown(head, rows)


def passing_table(seconds: float = 300.0, warm_up_s: float = 30.0) -> str:
    """Small requests, and now and then one that needs two thirds of the pool."""
    head = ("policy", "small: mean wait s", "P95 s", "large: mean wait s", "longest s", "large served")
    rows = []
    for name, settings in PASSING.items():
        played = play_load(TIGHT | settings, [SMALL, LARGE], seconds=seconds)
        small, large = (waits_s(of_stream(played, stream, warm_up_s)) for stream in ("small", "large"))
        p95, longest = np.percentile(small, 95), longest_wait_s(played, "large")
        rows.append((name, f"{small.mean():.2f}", f"{p95:.2f}", f"{large.mean():.1f}", _s(longest), f"{len(large)}"))
    return _markdown(head, rows)


def shortest_table(seconds: float = 300.0, warm_up_s: float = 0.0) -> str:
    """Bursts of prompts of very different lengths."""
    head = ("policy", "TTFT mean s", "P50 s", "P95 s", "longest wait s")
    rows = []
    for name, settings in SHORTEST.items():
        played = play_load(BASE | settings, [MIXED], seconds=seconds)
        served = of_stream(played, "mixed", warm_up_s)
        ttft, waits = first_token_s(served), waits_s(served)
        p50, p95 = np.percentile(ttft, (50, 95))
        rows.append((name, f"{ttft.mean():.2f}", f"{p50:.2f}", f"{p95:.2f}", _s(waits.max())))
    return _markdown(head, rows)


def _s(seconds: float) -> str:
    return "–" if np.isnan(seconds) else f"{seconds:.1f}"


def _ratio(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.1f}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Print the tables."""
    tables: dict[str, Callable[[], str]] = {
        "Priority classes": lambda: classes_table(CLASSES),
        "Ageing while chat alone is more than the engine can serve": lambda: classes_table(AGEING),
        "Prefill budget": budget_table,
        "Passing a blocked head": passing_table,
        "Shortest prompt first": shortest_table,
    }
    for title, table in tables.items():
        print(f"\n{title}\n\n{table()}")


if __name__ == "__main__":
    main()
