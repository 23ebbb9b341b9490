"""Every metric that the bundled engine's sources name is read, or left unread on purpose."""

import re
from pathlib import Path

from gpuwatch.dialects import all_dialects

SHIM = Path(__file__).parents[2] / "engine_shim"
PAGES = sorted({*(SHIM / "telemetry").glob("*.py"), *SHIM.rglob("*_page.py")})
UNREAD = {
    "request_requeue_time_seconds", "step_seconds",  # the step ring has single steps, spans have stages
    "linear_kernel_info", "linear_calls_total",  # what a profile shows of kernels
    "requests_stalled", "expected_wait_seconds", "queued_prompt_tokens", "response_cache_entries",
    "degraded_answers_total", "class_requests_waiting", "class_oldest_wait_seconds",
    "class_time_to_first_token_seconds",  # the engine's own protection
    "trace_spans_total",  # how spans fared
    "kv_transfer_queued_requests",  # part of those in transfer
}  # fmt: skip


def named():
    """The names that stand in full in its sources."""
    text = "\n".join(path.read_text() for path in PAGES)
    return set(re.findall(r'"shim:([a-z_]+[a-z])"', text))


def test_what_the_engine_exports_is_read_or_left_on_purpose():
    read = {name.removeprefix("shim:") for name in all_dialects()["shim"].sample_names("shim:")}
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in read}
    assert named() - bare - UNREAD == set()


def test_nothing_is_left_unread_that_is_gone():
    everything = "\n".join(path.read_text() for path in PAGES)
    assert [name for name in UNREAD if name not in everything] == []
