"""What it means when a log says nothing: for how long after a stats line its numbers may stand for the present.

vLLM V0 prints always: silence is a blocked engine loop. vLLM V1 prints until two intervals in a row moved nothing: silence
after a line without tokens means that still nothing moves, silence after a moving line means that the printer is gone.
SGLang prints per batch, llama.cpp per slot, TGI per request: their silence says nothing by itself.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Policy(msgspec.Struct, frozen=True):
    """How one engine prints. `interval_s`: the usual gap between two lines before one is known.

    `reach`: for how many usual gaps a line stands. `silence`: what a longer one means. "still": a line without tokens
    stands on. "stuck": requests that were inside are inside still, and nothing moves. "events": the state is told by its
    changes and stands until the next one. "nothing": not known.
    `dilutes`: rates count from the line before, so that the first one after a pause is no rate. `held`: numbers stand
    between lines at all.
    """

    interval_s: float
    silence: Literal["still", "stuck", "events", "nothing"] = "nothing"
    reach: float = 2.5
    dilutes: bool = False
    held: bool = True


POLICIES: dict[str, Policy] = {
    "vllm_v0": Policy(5.0, "stuck"),
    "vllm_v1": Policy(10.0, "still"),
    "sglang": Policy(1.0, reach=3.0, dilutes=True),
    "lmdeploy": Policy(10.0),
    "trtllm": Policy(1.0, dilutes=True, held=False),
    "llamacpp": Policy(1.0, "events"),
    "tgi": Policy(1.0, held=False),
    "ollama": Policy(1.0, held=False),
}
