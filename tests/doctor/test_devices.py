"""The doctor on devices: what a page lacks and what that blinds, the file that cures it, and whose device is which."""

import asyncio
import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuwatch.catalog import CATALOG
from gpuwatch.cli.main import main
from gpuwatch.config import parse
from gpuwatch.doctor import checkup, dcgm_counters
from gpuwatch.doctor.devices import look_at
from gpuwatch.rules.families import FAMILY_OF
from gpuwatch.sources.gpu.dcgm.fields import DCGM
from gpuwatch.sources.gpu.ownership.clues import Pid
from tests.ownership.proc_tree import ProcTree, on
from tests.ownership.test_mapping import GPUS, TWO, VLLM, looked, source_of
from tests.sources.stub_server import Reply, StubServer

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "tests" / "captures"
STOCK = (CAPTURES / "devices" / "dcgm-3.3.5-bare-synthetic.txt").read_bytes()
FULL = (CAPTURES / "devices" / "dcgm-4.8.2-kubernetes-synthetic.txt").read_bytes()
PAGE = (CAPTURES / "shim-0.1.0.txt").read_bytes()


def examined(tmp_path, page, seconds=2, **engine):
    async def run():
        async with StubServer(lambda _: Reply(PAGE)) as server, StubServer(lambda _: Reply(page)) as exporter:
            config = parse({
                "engines": [{"url": server.url, "name": "shim", "gpu_url": exporter.url, **engine}],
                "state_dir": str(tmp_path), "host": False, "gpu": {"nvml": False, "amd": False, "intel": False},
            })  # fmt: skip
            return await checkup.examine(config, seconds)

    return asyncio.run(run())


def test_a_stock_page_lacks_activity_throttling_and_errors_and_the_doctor_says_what_that_blinds(tmp_path):
    report = examined(tmp_path, STOCK)
    (page,) = report.devices.exporters
    assert page.kind == "dcgm-exporter"
    assert {
        "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_PROF_SM_OCCUPANCY", "DCGM_FI_DEV_THERMAL_VIOLATION",
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    } <= set(page.missing)  # fmt: skip
    assert "DCGM_FI_PROF_DRAM_ACTIVE" not in page.missing
    text = checkup.text(report)
    assert "lacks DCGM_FI_PROF_SM_ACTIVE: how the GPU is busy" in text
    assert "--print-counters" in text
    assert json.loads(checkup.to_json(report))["devices"]["exporters"][0]["missing"]


def test_a_page_that_is_not_renewed_gets_the_advice_to_collect_more_often(tmp_path):
    assert "--collect-interval=1000" in checkup.text(examined(tmp_path, STOCK, seconds=3))


def test_an_engine_without_a_device_is_told_why_and_what_to_write(tmp_path):
    """Two devices and no evidence: each source says what it lacks, and the candidates are named."""
    report = examined(tmp_path, STOCK)
    (one,) = report.devices.engines
    assert (one.engine, one.gpus, one.how) == ("shim", (), "")
    assert {"config", "kubelet", "processes", "exporter"} <= set(one.others)
    text = checkup.text(report)
    assert "shim: not known" in text
    assert 'gpus = [some of "GPU-0b1e7c44' in text


def test_an_engine_whose_pod_the_page_names_has_its_devices(tmp_path):
    report = examined(tmp_path, FULL, pod="chat/decode-70b-0")
    (one,) = report.devices.engines
    assert (len(one.gpus), one.how, one.change) == (2, "exporter", "")
    assert "(by exporter)" in checkup.text(report)
    assert set(report.devices.exporters[0].missing) == {
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
    }


def test_a_shared_device_and_a_contradiction_are_said(tmp_path):
    proc = ProcTree(tmp_path / "proc")
    proc.add(100)
    proc.add(200)
    source = source_of(
        TWO,
        proc.root,
        lists={GPUS[0]: on(100, 200)},
        pids={n: Pid(p, "config") for n, p in (("vllm", 100), ("sglang", 200))},
    )
    looked(source)
    shared = {one.engine: one.shared for one in look_at([source], 3.0).engines}
    assert "processes" in shared["vllm"][GPUS[0]]


def test_rights_that_are_missing_are_named(tmp_path):
    """Pids of the host without the host's processes; a driver that refuses."""

    class Nvml:
        name = "nvml"

        def devices(self):
            return {GPUS[0]: {"no_permission": "nvmlDeviceGetX", "gpm": "no: no permission"}}

        def owners(self):
            return {GPUS[0]: on(7)}

    source = source_of((VLLM,), ProcTree(tmp_path / "proc", hosts=False).root)
    looked(source)
    said = " ".join(look_at([Nvml(), source], 3.0).rights)
    assert "hostPID" in said
    assert "nvmlDeviceGetX" in said
    assert "no GPM" in said


def test_the_counters_file_has_what_is_missing_and_only_fields_that_are_read():
    """Each row is `field, type, help`; nothing is there twice."""
    rows = [row for row in csv.reader(dcgm_counters.csv().splitlines()) if row and not row[0].startswith("#")]
    assert all(len(row) == 3 and row[1].strip() in {"gauge", "counter", "label"} for row in rows)
    names = [row[0] for row in rows if row[1].strip() != "label"]
    assert len(names) == len(set(names))
    assert set(names) <= set(DCGM)
    assert {wanted.field for wanted in dcgm_counters.WANTED} <= set(names)
    assert dcgm_counters.missing(names) == []


def test_a_page_of_the_new_names_lacks_nothing_that_it_shows_under_them():
    new = {"DCGM_FI_PROF_SM_UTIL_RATIO", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_XID_ERROR"}
    lacking = {wanted.signal for wanted in dcgm_counters.missing(new)}
    assert not {"gpu_sm_active_ratio", "gpu_throttled_ratio", "gpu_xid_last_code"} & lacking


@pytest.mark.parametrize("wanted", dcgm_counters.WANTED, ids=lambda w: w.signal)
def test_what_is_blinded_is_a_class_or_a_question(wanted):
    assert wanted.signal in CATALOG
    named = wanted.blinds.partition(":")[0]
    assert "_" not in named or named in FAMILY_OF


def test_the_shipped_counters_file_is_the_printed_one():
    done = CliRunner().invoke(main, ["doctor", "--print-counters"])
    assert done.exit_code == 0
    assert done.stdout == (ROOT / "deploy" / "dcgm-exporter" / "counters.csv").read_text()
