"""A file is what is in it, whatever it is called."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.diagnose.content import Content
from gpuwatch.diagnose.recognise import kind_of
from gpuwatch.recording.capsule import MAGIC

PAGE = '# HELP up Is it up.\n# TYPE up gauge\nup{a="b c"} 1\nvllm_requests_total 5 1764000000000\n'
KINDS = {
    "capsule": MAGIC + b"\1\2",
    "capture": b'{"gpuwatch_capture":1,"t":1764000000.0,"engine":"a"}\n',
    "page": PAGE.encode(),
    "spans": b'{"resourceSpans": []}\n',
    "host table": b"t_wall,cpu_percent,rss_mb\n1764000000,50,900\n",
    "index": b"n,t_wall\n1,1764000000.5\n",
    "json": b'{"object": "list", "data": []}',
    "log": b"INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s\n",
    "empty": b" \n\n",
    "html": b"<!DOCTYPE html><html><body>502</body></html>",
    "binary": b"\x7fELF\0\0\0",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_told_by_its_content(kind):
    assert kind_of(KINDS[kind]) == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"tgi_queue_size 12\n# +60 s\ntgi_queue_size 57\n", "page"),
        (b'# source: a title\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 100\n', "page"),
        (PAGE.encode()[:-9], "page"),  # cut in the middle of a line
        (b"[2025-06-12 11:41:56] Decode batch. #running-req: 8\n", "log"),
        (b'{"timestamp":"2025-04-15T09:00:00Z","level":"INFO","fields":{"message":"Success"}}\n', "log"),
        (b'{"log":"INFO x\\n","stream":"stderr"}\n', "log"),
        (b'{"name": "llm_request", "context": {"trace_id": "0x1"}}\n', "spans"),
        (b'{\n  "name": "llm_request",\n  "context": {\n', "spans"),
        (b'{"trace_id":"a","name":"llm_request","start":1,"end":2}\n', "spans"),
        (b'[{"iter": 5, "numActiveRequests": 3}]', "page"),
        (b"[slo]\nttft = 1\n", "log"),
        (b"file,t_wall\na.txt,1764000000\n", "index"),
        (b"one, two\nthree, four\n", "log"),
    ],
)
def test_the_doubtful_ones(text, kind):
    assert kind_of(text) == kind


@given(st.binary(max_size=400))
def test_whatever_bytes_come_something_is_said(head):
    assert kind_of(head) in KINDS


def test_a_packed_file_is_read_as_far_as_it_goes(tmp_path):
    """Half of a gzip gives half of the text, and says that it was cut."""
    text = PAGE.encode() * 2000
    whole, half = tmp_path / "a", tmp_path / "b"
    packed = gzip.compress(text)
    whole.write_bytes(packed)
    half.write_bytes(packed[: len(packed) // 2])
    assert Content(str(whole)).whole() == text
    content = Content(str(half))
    read = content.whole()
    assert content.cut
    assert text.startswith(read)
    assert len(read) > 1000
    assert sum(1 for _ in Content(str(half)).lines()) > 10
