"""Requests and steps as an engine would tell them to its telemetry, one event at a time."""

from typing import Any

from engine_shim.request import Request, Stage
from engine_shim.step import STEP_FIELDS, Telemetry
from engine_shim.telemetry import EngineInfo

START = 1000.0


def info(**changes: Any) -> EngineInfo:
    """An engine of 100 blocks of 16 tokens."""
    facts: dict[str, Any] = {
        "engine": "shim", "model": "7b", "version": "0.1.0", "kv_total_blocks": 100, "block_tokens": 16,
        "max_num_seqs": 8, "max_model_len": 4096, "started_at": START, "arguments": {"admission": "fifo", "seed": 1},
    }  # fmt: skip
    return EngineInfo(**(facts | changes))


def record(**fields: float) -> list[float]:
    """A step record; what is not named is 0, the pool is the one of `info`."""
    values = dict.fromkeys(STEP_FIELDS, 0.0) | {"kv_total_blocks": 100.0} | fields
    return [values[name] for name in STEP_FIELDS]


class Telling:
    """Plays an engine: drives requests through their stages and steps."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.steps = 0

    def arrive(self, name: str, at: float, prompt: int = 100, output: int = 3, **more: Any) -> Request:
        """A request enters the queue."""
        request = Request(name, prompt, more.pop("max_tokens", output), at, output, **more)
        return self.enter(request, Stage.QUEUE, at)

    def enter(self, request: Request, stage: Stage, at: float) -> Request:
        """It enters a stage."""
        request.enter(stage, at)
        self.telemetry.stage_changed(request, stage, at)
        return request

    def token(self, request: Request, at: float) -> None:
        """It gets a token; the first comes with the end of its prefill."""
        request.output_tokens += 1
        if request.output_tokens == 1:
            request.first_token_at = at
        request.last_token_at = at

    def prefilled(self, request: Request, at: float) -> None:
        """Its prefill is done: a token, and it decodes."""
        self.token(request, at)
        self.enter(request, Stage.DECODE, at)

    def preempt(self, request: Request, at: float) -> None:
        """It loses its KV."""
        request.preemptions += 1
        self.enter(request, Stage.REQUEUE, at)

    def finish(self, request: Request, at: float, reason: str = "length") -> None:
        """It leaves."""
        request.finish_reason, request.finished_at = reason, at
        request.enter(Stage.FINISHED, at)
        self.telemetry.stage_changed(request, Stage.FINISHED, at)
        self.telemetry.finished(request)

    def step(self, begun: float, ended: float, **fields: float) -> None:
        """A whole step."""
        self.steps += 1
        row = record(step=self.steps, begun_at=begun, **fields)
        self.telemetry.step_begun(row)
        row[STEP_FIELDS.index("ended_at")] = ended
        self.telemetry.step_ended(row)


def ordinary_life(telling: Telling, name: str = "a", at: float = START, **more: Any) -> Request:
    """Queue 1 s, prefill 0.5 s, four tokens 0.1 s apart, over at +1.8 s."""
    request = telling.arrive(name, at, output=4, **more)
    telling.enter(request, Stage.PREFILL, at + 1.0)
    telling.prefilled(request, at + 1.5)
    telling.step(at + 1.0, at + 1.5, prefill_tokens=100, running=1, arrived_total=1)
    for n in range(1, 4):
        telling.token(request, at + 1.5 + n / 10)
        if n < 3:
            telling.step(at + 1.4 + n / 10, at + 1.5 + n / 10, decode_tokens=1, running=1, generated_tokens_total=n + 1)
    telling.finish(request, at + 1.8)
    telling.step(at + 1.7, at + 1.8, decode_tokens=1, running=1, generated_tokens_total=4, finished_total=1)
    return request
