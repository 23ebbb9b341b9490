"""The doctor looks for seconds, rules ask for minutes: what is only a matter of time is not called blind."""

import asyncio

import pytest

from gpuwatch.config import parse
from gpuwatch.doctor import checkup
from tests.sources.stub_server import Reply, StubServer

LABELS = 'model_name="m",engine="0"'


def page(second: int, waiting: bool = True) -> bytes:
    """A vLLM at work; without `waiting`, one that does not say its queue."""
    lines = [
        f"vllm:num_requests_running{{{LABELS}}} 8",
        f"vllm:kv_cache_usage_perc{{{LABELS}}} 0.4",
        f"vllm:generation_tokens_total{{{LABELS}}} {900 * second}",
        f"vllm:prompt_tokens_total{{{LABELS}}} {2000 * second}",
        f'vllm:request_success_total{{{LABELS},finished_reason="stop"}} {4 * second}',
    ]
    if waiting:
        lines.append(f"vllm:num_requests_waiting{{{LABELS}}} 0")
    return "".join(f"# TYPE {line.partition('{')[0]} gauge\n{line}\n" for line in lines).encode()


def examined(tmp_path, **what):
    looks = iter(range(10_000))

    async def run():
        async with StubServer(lambda _: Reply(page(next(looks), **what))) as server:
            config = parse({
                "engines": [{"url": server.url, "name": "chat"}], "state_dir": str(tmp_path), "host": False,
                "gpu": {"nvml": False, "amd": False, "intel": False},
            })  # fmt: skip
            return await checkup.examine(config, 2)

    return asyncio.run(run())


def test_a_healthy_engine_leaves_no_rule_blind_after_two_seconds(tmp_path):
    """Its rules see at once or after less than a minute and a half more, and the text says when."""
    report = examined(tmp_path)
    assert report.blind == []
    assert {"overload", "head_of_line_blocking"} <= set(report.soon)
    assert all(0 < seconds < 90 for subjects in report.soon.values() for seconds in subjects.values())
    assert set(report.seeing) | set(report.soon) >= {"engine_hang", "batch_thrashing"}
    assert "s more" in checkup.text(report)


@pytest.mark.parametrize("rule", ["overload", "traffic_surge", "head_of_line_blocking"])
def test_a_signal_that_nobody_has_stays_missing(tmp_path, rule):
    """No waiting cures a page without its queue."""
    report = examined(tmp_path, waiting=False)
    assert rule in {one.rule for one in report.blind}
    assert rule not in report.soon
    assert "req_waiting" in " ".join(next(one for one in report.blind if one.rule == rule).missing)
