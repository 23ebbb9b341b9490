"""`python -m tests.bench.scoreboard`: is the diagnosis right? Scenarios × seeds × devices in virtual time; docs/scoreboard.md.

Prints per class precision, recall and time to detection, the confusion matrix, harmful actions, the check of each label by its
cure, and everything that deviates from a scenario's [expect]. Exit code 0 whatever is wrong: a table is no test.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from typing import Any

from tests.bench.scores.board import label_text, labels, scores, text, variant_text, variants
from tests.bench.scores.case import VARIANTS, Case, has_cure, stems
from tests.bench.scores.play import Run, run

MODES = ("full", "wire", "vllm-defaults")


def main(arguments: list[str] | None = None) -> None:
    """Play and print."""
    asked = _parser().parse_args(arguments)
    if unknown := sorted(set(asked.scenarios) - set(stems())):
        sys.exit(f"no scenario {', '.join(unknown)}; known: {', '.join(stems())}")
    cases = list(_variant_cases(asked) if asked.vary else _cases(asked))
    runs = sorted(play_all(cases, asked.jobs), key=lambda r: r.case)
    board = _board(runs, asked)
    print(json.dumps(_known(board), indent=1) if asked.json else _text(board))


def play_all(cases: list[Case], jobs: int) -> Iterator[Run]:
    """Every case, in `jobs` processes, as they end; a bar on a terminal."""
    with ProcessPoolExecutor(jobs) as pool:
        futures = [pool.submit(run, case) for case in cases]
        for n, future in enumerate(as_completed(futures), 1):
            yield future.result()
            _show(n, len(cases))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scoreboard", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(1, 6), help="how many (5), or FIRST-LAST (11-15)")
    parser.add_argument("--devices", type=_words, default=["h100", "h200", "a100", "l40s"])
    parser.add_argument("--scenarios", type=_words, default=list(stems()))
    parser.add_argument("--telemetry", type=_words, default=["full", "vllm-defaults"], help=f"of {', '.join(MODES)}")
    parser.add_argument(
        "--vary", nargs="?", type=_words, const=list(VARIANTS), help="variants instead of the files' own"
    )
    parser.add_argument("--no-cure", dest="cure", action="store_false", help="leave out the check of the labels")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    return parser


def _words(value: str) -> list[str]:
    return [word for word in value.split(",") if word]


def _seeds(value: str) -> range:
    first, dash, last = value.partition("-")
    return range(int(first), int(last) + 1) if dash else range(1, int(first) + 1)


def _cases(asked: argparse.Namespace) -> Iterator[Case]:
    for stem in asked.scenarios:
        for device in asked.devices:
            for seed in asked.seeds:
                yield from (Case(stem, device, seed, mode) for mode in asked.telemetry)
                if asked.cure and has_cure(stem) and "full" in asked.telemetry:
                    yield Case(stem, device, seed, cured=True)


def _variant_cases(asked: argparse.Namespace) -> Iterator[Case]:
    for stem in asked.scenarios:
        for device in asked.devices:
            for seed in asked.seeds:
                yield from (Case(stem, device, seed, variant=variant) for variant in asked.vary)


def _board(runs: list[Run], asked: argparse.Namespace) -> dict[str, Any]:
    board: dict[str, Any] = {"not_played": {str(r.case): r.trouble for r in runs if r.trouble}}
    if asked.vary:
        return {**board, "variants": variants(runs)}
    played = _with_truth([r for r in runs if not r.trouble])
    board["telemetry"] = {
        mode: scores(r for r in played if r.case.mode == mode and not r.case.cured) for mode in asked.telemetry
    }
    cured = [r for r in played if r.case.cured]
    return {**board, "labels": labels(played, cured)} if cured else board


def _with_truth(runs: list[Run]) -> list[Run]:
    """What really happened is the same whatever the agent gets to see; it is read where everything is shown."""
    known = {r.case: r.truth for r in runs}
    return [r if r.truth else replace(r, truth=known.get(r.case.plain)) for r in runs]


def _text(board: dict[str, Any]) -> str:
    parts = [f"━━ telemetry: {mode} ━━\n{text(shown)}" for mode, shown in board.get("telemetry", {}).items()]
    if "labels" in board:
        parts.append(label_text(board["labels"]))
    if "variants" in board:
        parts.append(variant_text(board["variants"]))
    if board["not_played"]:
        parts.append("not played:\n" + "\n".join(f"  {case}: {why}" for case, why in board["not_played"].items()))
    return "\n\n".join(parts)


def _known(value: Any) -> Any:
    """JSON has no NaN: what is not known is null."""
    if isinstance(value, dict):
        return {key: _known(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_known(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _show(n: int, total: int) -> None:
    if sys.stderr.isatty():
        bar = "━" * (40 * n // total)
        print(f"\r{bar:<40} {n}/{total}", end="\n" if n == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
