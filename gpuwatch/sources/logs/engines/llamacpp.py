"""llama.cpp's server, 2023 to today: slots taken and freed, timings of finished requests, and its own diagnoses.

Nothing says how many requests wait: only slots are told. Their state stands until the next event.
"""

from __future__ import annotations

import re

from ..found import Facts, Found, Notice, Observed, Phrase, Slot, Stats, says
from ..numbers.numbers import NUMBER, text_of
from ..numbers.pairs import pairs

_SLOT = re.compile(r"\bid +(\d{1,5}) \|")
_OLD_SLOT = re.compile(r"\bslot +(\d{1,5}) ")
_NAMED_SLOT = re.compile(r"\bid_slot=(\d{1,5})")
_BACK_CHARS = 160
_TIMING = re.compile(rf"eval time = +({NUMBER}) ms / +(\d{{1,12}}) (?:tokens|runs)")
_SPEED = re.compile(rf"n_(?:decoded|gen) = +(\d{{1,12}}), tg = +({NUMBER}) t/s(?:, tg_3s = +({NUMBER}) t/s)?")
_PROMPT = re.compile(
    rf"prompt processing, n_tokens = +(\d{{1,12}}), progress = +({NUMBER}), t = +{NUMBER} s / +({NUMBER}) tokens per second"
)
_DRAFT = re.compile(
    rf"draft acceptance(?: rate)? = +({NUMBER}) \( *(\d{{1,12}}) accepted / +(\d{{1,12}}) generated\)"
    rf"(?:, mean (?:acceptance length|len) = +({NUMBER}))?"
)
_SHIFT = re.compile(r"\b(n_keep|n_left|n_discard) = (\d{1,12})")
_IN_USE = re.compile(r"n_processing_slots\"?[:=] ?(\d{1,5})")
_TOO_LONG = re.compile(r"request \((\d{1,12}) tokens\) exceeds the available context size(?: \((\d{1,12}) tokens\))?")


def _slot_id(text: str, at: int) -> int | None:
    for pattern, piece in (
        (_SLOT, text[max(0, at - _BACK_CHARS) : at]),
        (_OLD_SLOT, text[max(0, at - _BACK_CHARS) : at + 1]),
        (_NAMED_SLOT, text[at : at + _BACK_CHARS]),
    ):
        found = pattern.search(piece)
        if found:
            return int(found[1])
    return None


def _taken(text: str, at: int) -> tuple[Found, ...]:
    slot = _slot_id(text, at)
    return (Slot(slot, True),) if slot is not None else ()


def _freed(text: str, at: int) -> tuple[Found, ...]:
    slot = _slot_id(text, at)
    return (Slot(slot, False), Stats("llamacpp", counts={"req_finished_total": 1.0})) if slot is not None else ()


def _in_use(text: str, at: int) -> tuple[Found, ...]:
    """How many slots are in use, as older servers say whenever they are asked for their health."""
    found = _IN_USE.match(text, at)
    return (Stats("llamacpp", {"req_running": float(found[1])}),) if found else ()


def _all_free(text: str, at: int) -> tuple[Found, ...]:
    return (Slot(None, False),)


def _timing(text: str, at: int) -> tuple[Found, ...]:
    """Of a prompt or of its answer; both have `eval time`."""
    found = _TIMING.match(text, at)
    if not found:
        return ()
    seconds, tokens = float(found[1]) / 1000, float(found[2])
    if text[max(0, at - 7) : at] == "prompt ":
        return Stats("llamacpp", counts={"prompt_tokens_total": tokens}), Observed({"prefill_seconds": seconds})
    observed = {"decode_seconds": seconds} | ({"tpot_seconds": seconds / tokens} if tokens else {})
    return Stats("llamacpp", counts={"generated_tokens_total": tokens}), Observed(observed)


def _speed(text: str, at: int) -> tuple[Found, ...]:
    """Of the last three seconds where it is told: the mean since the request began hides that it stalls."""
    found, slot = _SPEED.match(text, at), _slot_id(text, at)
    return (Slot(slot, True, float(found[3] or found[2])),) if found and slot is not None else ()


def _prompt_speed(text: str, at: int) -> tuple[Found, ...]:
    found, slot = _PROMPT.match(text, at), _slot_id(text, at)
    if not found or slot is None:
        return ()
    return (Slot(slot, True, prompt_tokens_per_second=float(found[3]) if float(found[2]) < 1 else 0.0),)


def _shift(text: str, at: int) -> tuple[Found, ...]:
    detail = dict(_SHIFT.findall(text[at : at + 200]))
    return (Notice("context_shift", detail),) if detail else ()


def _draft(text: str, at: int) -> tuple[Found, ...]:
    found = _DRAFT.match(text, at)
    if not found:
        return ()
    ratio, accepted, drafted, length = found.groups()
    detail = {"acceptance_ratio": text_of(min(1.0, float(ratio))), "accepted": accepted, "drafted": drafted}
    if length:
        detail["mean_acceptance_length"] = text_of(float(length))
    return (Notice("spec_decode", detail),)


def _too_long(text: str, at: int) -> tuple[Found, ...]:
    found = _TOO_LONG.search(text[max(0, at - 40) : at + 100])
    if not found:
        return (Notice("unschedulable"),)
    have = {"have_tokens": found[2]} if found[2] else {}
    return (Notice("unschedulable", {"need_tokens": found[1], **have}),)


def _limits(text: str, at: int) -> tuple[Found, ...]:
    said = pairs(text, at)
    names = (("n_ctx_slot", "max_model_len"), ("n_slots", "max_num_seqs"), ("n_parallel", "max_num_seqs"))
    labels = {ours: text_of(said[theirs]) for theirs, ours in names if theirs in said}
    return (Facts(labels),) if labels else ()


PHRASES = (
    Phrase("| processing task", "llamacpp", _taken),
    Phrase("is processing [task id:", "llamacpp", _taken),
    Phrase("slot is processing task", "llamacpp", _taken),
    Phrase("| stop processing:", "llamacpp", _freed),
    Phrase("slot released", "llamacpp", _freed),
    Phrase(" released (", "llamacpp", _freed),
    Phrase("n_processing_slots", "llamacpp", _in_use),
    Phrase("all slots are idle", "llamacpp", _all_free),
    Phrase("eval time = ", "llamacpp", _timing),
    Phrase("n_decoded = ", "llamacpp", _speed),
    Phrase("n_gen = ", "llamacpp", _speed),
    Phrase("prompt processing, n_tokens = ", "llamacpp", _prompt_speed),
    Phrase("context shift", "llamacpp", _shift),
    Phrase("slot unavailable", "llamacpp", says("slot_unavailable")),
    Phrase("draft acceptance", "llamacpp", _draft),
    Phrase("forcing full prompt re-processing", "llamacpp", says("reprocessed")),
    Phrase("failed to find free space in the KV cache", "llamacpp", says("kv_retry")),
    Phrase("Context size has been exceeded", "llamacpp", says("unschedulable")),
    Phrase("exceeds the available context size", "llamacpp", _too_long),
    Phrase("cancel task, id_task", "llamacpp", says("client_disconnected")),
    Phrase("n_ctx_slot = ", "llamacpp", _limits),
    Phrase("initializing slots, n_slots = ", "llamacpp", _limits),
)
