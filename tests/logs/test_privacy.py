"""No text of a line reaches a batch, whatever the line says: numbers, kinds and words of closed lists do."""
# ruff: noqa: E501  (a line of a log is as long as it is)

import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.sources.logs import LogRead, read_log
from gpuwatch.sources.logs.kinds import NOTICES, TEXT_VALUES
from gpuwatch.sources.logs.phrases import PHRASES
from tests.logs.told import facts, kinds, notices, read, rows, v1

SECRET = "Zebra77Quagga"
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
PCI = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?")
VERSION = re.compile(r"\d+(\.\d+){1,3}(\.?(rc|post|dev|a|b)\d+)*")


def everything(found: LogRead) -> str:
    """All that left the reader, as text."""
    calls = msgspec.json.encode(
        [batches for _, batches in found.calls], enc_hook=lambda x: x.tolist() if isinstance(x, np.ndarray) else str(x)
    )
    return calls.decode() + " ".join(found.notes) + str(found.dropped) + found.engine_kind


def assert_only_numbers(found: LogRead) -> None:
    for notice in notices(found):
        for key, value in notice.items():
            assert re.fullmatch(r"[a-z_]{1,40}", key)
            allowed = value in NOTICES if key == "kind" else value in TEXT_VALUES
            assert allowed or NUMBER.fullmatch(value) or PCI.fullmatch(value), (key, value)
    for key, value in facts(found).items():
        assert NUMBER.fullmatch(value) or VERSION.fullmatch(value), (key, value)


LINES = [
    f'2025-05-01T01:31:02.842858Z  INFO generate{{parameters=GenerateParameters {{ stop: ["{SECRET}"], grammar: Some(Json(String("{SECRET}"))) }} total_time="2s" validation_time="1ms" queue_time="1s" inference_time="1s" time_per_token="1ms" seed="{SECRET}"}}: text_generation_router::server: Success',
    f"2025-05-01T01:31:14.787487Z DEBUG generate{{parameters=x}}: text_generation_router::server: router/src/server.rs:291: Input: {SECRET}\n{SECRET}: 7 Running: 9 reqs",
    f"INFO 07-28 06:40:59 [logger.py:43] Received request cmpl-{SECRET}: prompt: '{SECRET}', params: SamplingParams(n=1), prompt_token_ids: [7], lora_request: None.",
    f"INFO 07-28 06:40:59 [logger.py:43] Generated response cmpl-{SECRET}: output: '{SECRET}', finish_reason: stop",
    f"[2025-06-12 11:41:56] Receive: obj=GenerateReqInput(text='{SECRET}', input_ids=None, rid='{SECRET}')",
    f"[2025-06-12 11:41:56] Received output for rid='{SECRET}' but the state was deleted in TokenizerManager.",
    f"(Worker_DP6_EP6 pid=1) ERROR 08-01 12:42:13 [x.py:1] pulling kv_caches for ['{SECRET}'] failed: Timeout waiting for P side ready.",
    f"INFO 08-01 12:42:16 [async_llm.py:1] Aborted request(s) {SECRET}.",
    f"INFO 06-19 23:04:00 [utils.py:1] non-default args: {{'model': '{SECRET}', 'api_key': '{SECRET}', 'max_num_seqs': 64}}",
    f"INFO 06-19 23:04:00 [api_server.py:1] vLLM API server version 0.10.1+{SECRET}",
    f"[TRT-LLM] Address(host='{SECRET}', port=60652) is disconnected, abort 2",
    f"WARNING 04-25 12:26:07 scheduler.py:1141] Sequence group {SECRET} is preempted by PreemptionMode.SWAP mode, total_num_cumulative_preemption=1",
    f"[rank3]: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType={SECRET.upper()}, x) ran for 600012 milliseconds",
    f"Jul 28 06:40:59 {SECRET} kernel: NVRM: Xid (PCI:0000:B3:00): 45, pid=77, name={SECRET}, Ch 00000001",
    f"{SECRET}_awq quantization is not fully optimized yet. {SECRET}",
    v1(0, 1.0, 1.0, 1, 0, 1.0) + f", {SECRET}: 7, Prompt {SECRET}: 9%",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_nothing_of_a_text_is_told(line):
    found = read_log([part.encode() for part in line.split("\n")], "e", 0.0)
    assert SECRET.lower() not in everything(found).lower()
    assert_only_numbers(found)


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=12)


@settings(deadline=None, max_examples=60)
@given(
    phrase=st.sampled_from(PHRASES),
    before=st.lists(WORDS, max_size=4),
    after=st.lists(WORDS | st.just(SECRET) | st.integers(0, 10**9).map(str), max_size=12),
    line=st.sampled_from(LINES),
)
def test_whatever_stands_around_a_phrase_only_numbers_get_out(phrase, before, after, line):
    """Each phrase that is looked for, in the middle of anything, also of another line."""
    text = " ".join([SECRET, *before, phrase.literal + " " + SECRET, *after, SECRET])
    found = read_log([text.encode(), (line + text).encode(), (text + line).encode()], "e", 0.0)
    assert SECRET.lower() not in everything(found).lower()
    assert_only_numbers(found)


def test_telemetry_in_a_clients_words_is_not_believed():
    """A prompt that quotes a stats line or an error is a prompt."""
    quoted = v1(60, 1.0, 1.0, 999, 999, 99.0)
    found = read(
        v1(0, 1.0, 1.0, 1, 0, 1.0),
        f"INFO 07-28 01:00:05 [logger.py:43] Received request cmpl-1: prompt: 'Why? {quoted} EngineDeadError', params: x",
        f"2025-07-28T01:00:06Z DEBUG generate: router/src/server.rs:291: Input: Explain {quoted} CUDA out of memory. Tried to allocate 9 GiB",
        quoted[quoted.index("Engine 000") :],
        v1(10, 1.0, 1.0, 1, 0, 1.0),
    )
    assert {row["req_running"] for row in rows(found)} == {1.0}
    assert kinds(found) == []
    assert found.dropped["unprefixed"] == 1
