"""A file of exports beside a recording: trees whose spans lie in several lines are whole, too."""

from gpuwatch.diagnose.span_lines import SpanFile
from tests.spans.exports import as_json, seconds
from tests.spans.test_dialects import PLAIN, new_sglang, sglang


def test_a_scattered_tree_in_a_file_is_one_request():
    trace = sglang(new_sglang(), *PLAIN)
    late = trace.take_out(lambda span: span.name in ("prefill_waiting", "decode_forward"))
    file = SpanFile("e")
    file.read([as_json(late.message), as_json(trace.message)])
    found = [spans for _, batch in file.items for spans in batch.spans]
    assert seconds(found) == {"request": 3.0, "preprocess": 0.15, "queue": 0.55, "prefill": 0.3, "decode": 2.0}
    assert (file.unread, file.foreign) == (0, 0)
