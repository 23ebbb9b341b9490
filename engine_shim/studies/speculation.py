"""What speculation brings and costs on a modelled H100 with 7B weights, by load and by how often drafts are right.

    python -m engine_shim.studies.speculation

A closed loop keeps so many chats in the engine (prompts of 200, answers of 200 tokens). Without a draft, few requests
leave the device waiting for weights, and checking more tokens costs next to nothing; many fill it with work of their
own, and each wrong token is then paid for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .played import play_load

SECONDS = 40.0
WARM_S = 10.0
CHATS = (1, 16, 64, 192)
KINDS: dict[str, dict[str, Any]] = {
    "no drafts": {},
    **{f"{ratio:.0%} accepted": {"speculative": "ngram", "speculative_acceptance": ratio} for ratio in (0.9, 0.7, 0.4)},
    "none accepted": {"speculative": "ngram", "speculative_acceptance": 0.0},
}


@dataclass(frozen=True, slots=True)
class Row:
    """Output tokens per second and mean gap between tokens, in seconds."""

    kind: str
    chats: int
    tokens_per_s: float
    gap_s: float


def measure(kind: str, chats: int, seconds: float = SECONDS) -> Row:
    """One kind of draft at one load."""
    settings = {"model": "7b", "max_num_seqs": 256, "max_step_tokens": 8192, **KINDS[kind]}
    load = {"arrivals": "closed", "concurrency": chats, "prompt_tokens": 200, "output_tokens": 200}
    played = play_load(settings, [load], seconds=seconds)
    served = played.served(WARM_S)
    gaps = [(r.last_token_at - r.first_token_at) / (r.output_tokens - 1) for r in served]
    tokens = sum(r.output_tokens for r in served)
    return Row(kind, chats, tokens / (seconds - WARM_S), sum(gaps) / len(gaps))


def table(rows: list[Row]) -> str:
    """Kinds down, loads across: tokens per second, and the gap in milliseconds."""
    lines = [
        "| drafts of 4 | " + " | ".join(f"{chats} at once" for chats in CHATS) + " |",
        "|---" * (len(CHATS) + 1) + "|",
    ]
    for kind in KINDS:
        cells = [f"{row.tokens_per_s:.0f}/s, {row.gap_s * 1e3:.1f} ms" for row in rows if row.kind == kind]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    print(table([measure(kind, chats) for kind in KINDS for chats in CHATS]))


if __name__ == "__main__":
    main()
