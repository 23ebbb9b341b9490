"""One page: what it tells, what one look cannot, and pages of several exporters in one file."""

from click.testing import CliRunner

from gpuwatch.cli.main import main
from gpuwatch.config import Config
from gpuwatch.diagnose import examine
from gpuwatch.diagnose.host_page import HostPage
from gpuwatch.diagnose.pages import PageBook
from gpuwatch.model import Subject
from tests.diagnosis.recordings import START, engine_pages

ENGINE = (
    'vllm:num_requests_running{engine="0",model_name="m"} 0\nvllm:num_requests_waiting{engine="0",model_name="m"} 6\n'
)
GPU = 'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 50\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 0\n'
CGROUP = 'container_cpu_cfs_periods_total{pod="a"} 6000\ncontainer_cpu_cfs_throttled_periods_total{pod="a"} 5990\n'


def values(batches):
    """Subject key → signal → value."""
    out = {}
    for batch in batches:
        for frame in batch.frames:
            told = dict(zip(frame.names, frame.values[-1].tolist(), strict=True))
            out.setdefault(frame.subject.key, {}).update(told)
    return out


def test_a_page_says_what_one_look_cannot_tell(tmp_path):
    """Levels, not rates: and it is said, before a verdict that claims no more than a level can."""
    file = tmp_path / "metrics.txt"
    file.write_text(engine_pages("healthy_steady")[60][1])
    done = CliRunner().invoke(main, ["diagnose", str(file)])
    assert done.exit_code == 0
    found, unseen = done.stdout.split("not seen", 1)
    assert "vllm page" in found
    assert "looks" not in found
    assert "One look" in unseen
    assert "PAGE" not in unseen
    assert "No incident." in unseen, "nobody waits: some rules can tell that much"


def test_where_no_rule_could_judge_nothing_is_called_healthy(tmp_path):
    file = tmp_path / "metrics.txt"
    file.write_text('vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_waiting{engine="0"} -3\n')
    done = CliRunner().invoke(main, ["diagnose", str(file)])
    assert done.exit_code == 0
    assert "No incident" not in done.stdout
    assert done.stdout.rstrip().endswith("no rule could judge: that is no proof of health."), "and no state of unknowns"


def test_every_reader_takes_what_is_its_own():
    """An engine, two devices without UUIDs and a container on one page."""
    batches = PageBook("engine").read((ENGINE + GPU + CGROUP).encode(), START)
    assert [b.role for b in batches] == ["engine", "gpu", "host"]
    told = values(batches)
    assert told["engine/engine/0"]["req_waiting"] == 6
    assert (told["gpu/gpu0"]["gpu_util_ratio"], told["gpu/gpu1"]["gpu_util_ratio"]) == (0.5, 0)
    assert round(told["engine/engine/0"]["cgroup_cpu_throttled_ratio"], 3) == 0.998


def test_another_exporters_page_is_no_failed_look_at_the_engine():
    book = PageBook("engine")
    assert [b.error for b in book.read(GPU.encode(), START)] == [None]
    node = 'go_goroutines 8\nnode_load1 4\nnode_cpu_seconds_total{cpu="0",mode="idle"} 50\n'
    assert [(b.role, b.error) for b in book.read(node.encode(), START)] == [("host", None)]
    assert book.seen["failed"] == 0


def test_a_page_without_engine_series_says_so_and_a_web_page_too():
    (plain,) = PageBook("engine").read(b"python_gc_collections_total 5\nprocess_start_time_seconds 1764000000\n", START)
    assert "no engine series on the page (2 names" in plain.error
    (web,) = PageBook("engine").read(b"<html><body>502 Bad Gateway</body></html>", START)
    assert "an HTML page" in web.error
    (empty,) = PageBook("engine").read(b"", START)
    assert empty.error == "an empty page"


def test_a_list_of_iterations_is_a_look_at_the_newest():
    """trtllm-serve shows JSON; an empty list says that somebody else was there before."""
    row = '{{"iter": {}, "iterLatencyMS": 12.5, "numActiveRequests": 7, "numQueuedRequests": 3}}'
    book = PageBook("engine")
    told = values(book.read(f"[{row.format(4)}, {row.format(5)}]".encode(), START))["engine/engine/0"]
    assert told == {"steps_total": 5, "step_seconds": 0.0125, "req_running": 7, "req_waiting": 3}
    (empty,) = book.read(b"[]", START)
    assert "another reader" in empty.error


def test_two_scrapes_tell_what_one_cannot(tmp_path):
    """The queue grows by 45 in a minute while the batch stands still."""
    file = tmp_path / "tgi.prom"
    page = 'tgi_queue_size {}\ntgi_batch_current_size 8\ntgi_batch_inference_count{{method="decode"}} 48211\n'
    file.write_text(page.format(12) + "# +60 s\n" + page.format(57))
    answer = examine([str(file)], Config())
    (found,) = answer.found
    assert (found.looks, found.cadence_s) == (2, 60.0)
    assert not any("One look" in line for line in answer.judged.cannot_tell)


def test_host_ratios_are_of_the_time_between_two_looks():
    """The first look tells the whole life of a container; the second what happened since; a smaller counter is a restart."""
    page = HostPage(Subject(host="h"), Subject(engine="e"))

    def look(at, periods, throttled, busy=0, idle=0):
        text = f'container_cpu_cfs_periods_total{{container="c"}} {periods}\n'
        text += f'container_cpu_cfs_throttled_periods_total{{container="c"}} {throttled}\n'
        text += f'node_cpu_seconds_total{{cpu="0",mode="user"}} {busy}\nnode_cpu_seconds_total{{cpu="0",mode="idle"}} {idle}\n'
        frames = page.read(text.encode(), at, of_engine=False)
        return {n: v for f in frames for n, v in zip(f.names, f.values[0].tolist(), strict=True)}

    assert look(0.0, 100, 10, 5, 5) == {"cgroup_cpu_throttled_ratio": 0.1}
    assert look(10.0, 200, 90, 11, 9) == {"cgroup_cpu_throttled_ratio": 0.8, "host_cpu_ratio": 0.6}
    assert look(20.0, 10, 5, 12, 18)["cgroup_cpu_throttled_ratio"] == 0.5


def test_the_busiest_container_counts_and_not_the_pods_sum():
    page = HostPage(Subject(host="h"), Subject(engine="e"))
    rows = [("", 900, 900), ("POD", 900, 900), ("sidecar", 10, 0), ("engine", 100, 30)]
    text = "".join(
        f'container_cpu_cfs_periods_total{{pod="p",container="{c}"}} {n}\n'
        f'container_cpu_cfs_throttled_periods_total{{pod="p",container="{c}"}} {t}\n'
        for c, n, t in rows
    )
    (frame,) = page.read(text.encode(), 0.0, of_engine=False)
    assert frame.values[0].tolist() == [0.3]


def test_a_page_of_names_without_values_is_said_to_be_one(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text("# HELP DCGM_FI_DEV_GPU_TEMP Temperature.\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n")
    [incident] = examine([str(path)], Config()).verdict.incidents
    assert incident.rule == "stale_telemetry"
    assert "no value of any" in incident.summary


def test_a_page_whose_last_line_is_torn_is_a_page(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text(
        '# TYPE DCGM_FI_DEV_SM_CLOCK gauge\nDCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a"} 135\nDCGM_FI_DEV_SM_CL\n'
    )
    assert examine([str(path)], Config()).found[0].what.startswith("dcgm-exporter")
