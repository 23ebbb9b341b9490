"""What the step ring costs the engine in each step."""

from __future__ import annotations

import tempfile

from engine_shim.step import STEP_FIELDS
from engine_shim.telemetry import EngineInfo, build_telemetry
from tests.bench.measure import by_turns
from tests.bench.row import Row


def written() -> Row:
    """Start and end of a step into the ring, against an OpenTelemetry span for it."""
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("bench")
    record = [float(i) for i in range(len(STEP_FIELDS))]
    attributes = dict(zip(STEP_FIELDS[:10], record, strict=False))
    with tempfile.TemporaryDirectory() as folder:
        ring = build_telemetry(
            EngineInfo("bench", "7b", "0", 8192, 16, 64, 131_072, 0.0), lambda: 0.0, ring_dir=folder, otlp_endpoint=""
        ).ring
        assert ring is not None

        def ours() -> None:
            ring.step_begun(record)
            ring.step_ended(record)

        def naive() -> None:
            tracer.start_span("step", attributes=attributes).end()

        now, span = by_turns(ours, naive)
        ring.close()
    return Row("µs a step", 2.0, now * 1e6, span * 1e6,
        note="both writes of a step, all fields, checksum; naive is one OTel span with ten attributes, not exported",
    )  # fmt: skip
