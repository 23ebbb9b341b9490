"""Renews tests/golden/verdict.json: `python -m scripts.golden` plays the founding case in virtual time and judges it.

It is an example of a whole verdict for consumers and for the test of the published schema; read its diff before you commit it.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

from engine_shim.demand.scenario import load_scenario
from engine_shim.simulation.assemble import simulate
from gpuwatch.config import Config
from gpuwatch.incidents.verdict import to_json
from gpuwatch.pipeline import Pipeline
from gpuwatch.recording.quantize import quantized
from gpuwatch.sources.files.capture import calls, read_capture

REPOSITORY = Path(__file__).parents[1]
GOLDEN = REPOSITORY / "tests" / "golden" / "verdict.json"
SCENARIO, DEVICE, SEED = "batch_thrashing", "h100", 1
SCOPE = {"cluster": "eu-1", "namespace": "llm", "pool": "chat", "team": "search"}


def main() -> None:
    """Play, judge, write."""
    stream = io.BytesIO()
    scenario = load_scenario(REPOSITORY / "tests" / "scenarios" / f"{SCENARIO}.toml", DEVICE)
    simulate(scenario, stream, device=DEVICE, seed=SEED)
    stream.seek(0)
    pipeline = Pipeline(Config(scope=SCOPE))
    for call in calls(read_capture(stream)):
        pipeline.step(*quantized(*call))
    verdict = json.loads(to_json(pipeline.verdict()))
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps(verdict, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(f"wrote {GOLDEN.relative_to(REPOSITORY)}: {[incident['rule'] for incident in verdict['incidents']]}")


if __name__ == "__main__":
    main()
