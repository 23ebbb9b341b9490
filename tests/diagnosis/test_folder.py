"""A folder of scrape pages from end to end: what is named, what is said not to be seen, and what is survived."""

import gzip
import json
import os

import pytest
from click.testing import CliRunner

from gpuwatch.cli.main import main
from gpuwatch.config import Config
from gpuwatch.diagnose import MaterialError, examine
from tests.diagnosis.recordings import curl_loop, engine_pages

THRASHING, HEALTHY = "batch_thrashing", "healthy_steady"


def classes(answer):
    """The rules of what is more than information."""
    return {i.rule for i in answer.verdict.incidents if i.severity != "info"}


def test_a_curl_loop_of_the_founding_case_is_named_and_what_is_not_seen_is_said(tmp_path):
    """At 1 Hz from pages alone; the command says sources, blind spots and verdict, and --check exits with 1."""
    folder = curl_loop(tmp_path / "scrapes", engine_pages(THRASHING))
    done = CliRunner().invoke(main, ["diagnose", str(folder), "--check"])
    assert done.exit_code == 1, done.output
    found, unseen, verdict = done.stdout.split("\n\n", 2)
    assert f"{folder}: folder of pages: vllm page, 330 looks" in " ".join(found.split())
    assert "every 1 s" in found
    assert "No device was seen" in unseen
    assert verdict.startswith("PAGE  batch_thrashing (head_admission)")
    assert "not seen without a step ring" in verdict or "no step ring" in done.stdout or "single requests" in unseen


def test_json_is_the_verdict_alone_with_its_sources(tmp_path):
    folder = curl_loop(tmp_path, engine_pages(THRASHING))
    done = CliRunner().invoke(main, ["diagnose", str(folder), "--json"])
    verdict = json.loads(done.stdout)
    assert verdict["incidents"][0]["rule"] == THRASHING
    assert [(s["name"], s["polls"], s["errors"]) for s in verdict["sources"]] == [("page:engine", 330, 0)]


def test_a_healthy_engine_gives_no_incident(tmp_path):
    assert classes(examine([str(curl_loop(tmp_path, engine_pages(HEALTHY)))], Config())) == set()


@pytest.mark.parametrize(("every", "first"), [(5, 0), (5, 3), (15, 0), (15, 5), (15, 10)])
def test_slow_looks_are_right_or_unsure_and_never_wrong(tmp_path, every, first):
    """At 5 s the class is named; at 15 s it may be left open, but no other class is claimed."""
    answer = examine([str(curl_loop(tmp_path / "t", engine_pages(THRASHING), every, first))], Config())
    assert classes(answer) <= {THRASHING, "unknown"}
    assert every > 5 or THRASHING in classes(answer)
    assert classes(examine([str(curl_loop(tmp_path / "h", engine_pages(HEALTHY), every, first))], Config())) == set()


def test_slow_looks_say_that_the_period_is_a_bound(tmp_path):
    answer = examine([str(curl_loop(tmp_path, engine_pages(THRASHING), 5))], Config())
    (incident,) = [i for i in answer.verdict.incidents if i.rule == THRASHING]
    assert "at least every" in incident.summary
    assert any("looks are 5 s apart" in str(e.observed) for e in incident.evidence)


def test_what_a_disk_and_a_killed_loop_leave_is_survived_and_said(tmp_path):
    """A half-written page, an empty one, a lost one, one with another's time, one packed, and a file that is none."""
    folder = curl_loop(tmp_path, engine_pages(THRASHING))
    (folder / "page_40.txt").write_text((folder / "page_40.txt").read_text()[:931])
    (folder / "page_41.txt").write_text("")
    (folder / "page_42.txt").unlink()
    packed = (folder / "page_50.txt").read_bytes()
    (folder / "page_50.txt").unlink()
    (folder / "page_50.txt.gz").write_bytes(gzip.compress(packed))
    broken = gzip.compress((folder / "page_51.txt").read_bytes())
    (folder / "page_51.txt").write_bytes(broken[: len(broken) // 2])
    (folder / "notes.md").write_text("# what I did\nran curl in a loop\n")
    rows = (folder / "index.csv").read_text().splitlines()
    rows[60], rows[61] = rows[61], rows[60]  # the index may be in any order
    rows.append("oops,not a time")
    (folder / "index.csv").write_text("\n".join(rows))
    answer = examine([str(folder)], Config())
    assert classes(answer) == {THRASHING}
    notes = " ".join(answer.notes)
    for said in (
        "2 of 330 pages half-written",
        "1 of 330 pages cut",
        "1 rows of index.csv have no page",
        "1 rows could not be read",
    ):
        assert said in notes, notes
    assert sum(s.errors for s in answer.verdict.sources) == 2, "the empty page and the lost one are failed looks"


def test_times_come_from_names_or_from_the_files_where_there_is_no_index(tmp_path):
    """Numbers in names are no times; unix seconds and dates in names are; otherwise the files' own times count."""
    pages = engine_pages(THRASHING)
    named = tmp_path / "named"
    named.mkdir()
    for at, body in pages:
        (named / f"metrics-{at:.0f}.prom").write_text(body)
    written = tmp_path / "written"
    written.mkdir()
    for n, (at, body) in enumerate(pages):
        (written / f"{n}.txt").write_text(body)
        os.utime(written / f"{n}.txt", (at, at))
    for folder, said in ((named, "from their names"), (written, "when the files were written")):
        answer = examine([str(folder)], Config())
        assert classes(answer) == {THRASHING}, folder.name
        assert any(said in note for note in answer.notes), answer.notes


def test_the_number_counts_and_not_the_order_of_the_names(tmp_path):
    """page_10 stands before page_9 in a listing; the index says which is which."""
    folder = curl_loop(tmp_path, engine_pages(THRASHING)[:120])
    answer = examine([str(folder)], Config())
    assert not any("out of order" in note for note in answer.notes)
    assert not any("restart" in i.summary for i in answer.verdict.incidents)


def test_the_number_may_stand_in_front_and_the_host_table_may_be_numbered_too(tmp_path):
    """`12-page-v1.txt`, two pages of one number (engine and GPU), and a host.csv with columns n and t_wall of its own."""
    folder = curl_loop(tmp_path, engine_pages(HEALTHY)[:30], name="{n}-page-v1.txt")
    for n in range(1, 31):
        (folder / f"{n}-gpu-v1.txt").write_text(f'DCGM_FI_DEV_GPU_UTIL{{UUID="GPU-a"}} {n + 50}\n')
    at = engine_pages(HEALTHY)[0][0]
    rows = "".join(f"{n},{at + n},{n}\n" for n in range(1, 30))
    (folder / "host.csv").write_text("n,t_wall,cpu_percent\n" + rows)
    answer = examine([str(folder)], Config())
    assert {(s.role, s.polls) for s in answer.verdict.sources} == {("engine", 30), ("gpu", 30), ("host", 29)}


def test_the_index_may_name_files_times_and_failures(tmp_path):
    """`file`, `took_ms` and `http_code` are read; a look that failed is a failed poll of the source."""
    pages = engine_pages(HEALTHY)[:30]
    rows = ["file,t_wall,took_ms,http_code"]
    for n, (at, body) in enumerate(pages):
        (tmp_path / f"look-{n:03}.txt").write_text(body)
        rows.append(f"look-{n:03}.txt,{at},12.5,{'503' if n == 7 else '200'}")
    (tmp_path / "index.csv").write_text("\n".join(rows))
    answer = examine([str(tmp_path)], Config())
    (source,) = answer.verdict.sources
    assert (source.polls, source.errors, source.last_error) == (30, 1, "HTTP 503")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "no page, log, span file, host table, capture or capsule in this folder"),
        (
            {"index.csv": "n,t\n1,5\n", "1.txt": "up 1\n"},
            "index.csv: line 1: columns n (or file) and t_wall are needed",
        ),
        ({"index.csv": "n,t_wall\n8,1764000000\n", "1.txt": "up 1\n"}, "no page has a number or a name that stands in"),
    ],
)
def test_a_folder_that_cannot_be_used_is_an_error_that_names_it(tmp_path, files, says):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(MaterialError, match="(?s)" + str(tmp_path)) as error:
        examine([str(tmp_path)], Config())
    assert says in str(error.value)
