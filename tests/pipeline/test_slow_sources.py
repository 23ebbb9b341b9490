"""What slow looks and a log's held lines are evidence of: a page that ends while its log goes on, one line, one low look."""

import numpy as np

from gpuwatch.config import Config
from gpuwatch.model import Batch, Frame, Subject
from gpuwatch.pipeline import Pipeline

START, ENGINE = 1_764_000_000, Subject(engine="e")
NAMES = ("req_running", "req_waiting", "kv_usage_ratio", "generated_tokens_total", "req_finished_total", "steps_total")


def reading(at, source, running, waiting, moved):
    """A look at a busy engine; `moved`: seconds of work done so far."""
    values = np.array([[running, waiting, 0.01, 900.0 * moved, 5.0 * moved, 90.0 * moved]])
    frame = Frame(ENGINE, source, NAMES, np.array([START + at - 0.5]), values)
    return Batch(source, "log" if source == "log" else "engine", ENGINE, START + at - 0.5, frames=(frame,))


def rules(batches, seconds):
    """Every rule that had a finding, whether an incident came of it or not."""
    pipeline, found = Pipeline(Config()), set()
    for now in range(1, seconds + 1):
        tick = pipeline.step(float(START + now), [b for b in batches if now - 1 < b.received_at - START <= now])
        found |= {f.rule for f in tick.findings}
    return found


def test_where_the_pages_end_and_the_log_goes_on_nothing_hangs():
    pages = [reading(at, "page", 8, 100, at) for at in range(1, 61, 5)]
    log = [reading(at, "log", 8, 100, at) for at in range(1, 91)]
    assert "engine_hang" not in rules([*pages, *log], 90)
    looked = [reading(at, "page", 8, 100, 56) for at in range(61, 91, 5)]
    assert "engine_hang" in rules([*pages, *looked], 90), "where somebody looks on, it does"


def test_one_line_with_a_free_place_is_no_blocked_head_however_long_it_stands():
    lines = [reading(at, "log", 7 if 60 <= at < 70 else 8, 100, at) for at in range(1, 91)]
    assert "head_of_line_blocking" not in rules(lines, 90)
    lasting = [reading(at, "log", 8 if at < 60 else 4, 50 + at, at) for at in range(1, 121)]
    assert "head_of_line_blocking" in rules(lasting, 120)


def test_slow_looks_between_which_the_queue_shrinks_saw_somebody_let_in():
    def looks(change):
        return [reading(at, "page", 8 if at < 60 else 7, 100 + change * max(0, at - 60), at) for at in range(1, 111, 5)]

    assert "head_of_line_blocking" not in rules(looks(-1), 110)
    assert "head_of_line_blocking" in rules(looks(+1), 110)
