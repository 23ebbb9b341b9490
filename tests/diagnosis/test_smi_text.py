"""nvidia-smi's table and its report are looks at each device; whatever is not a number is missing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.config import Config
from gpuwatch.diagnose import examine
from gpuwatch.diagnose.recognise import kind_of
from gpuwatch.diagnose.smi_text import SmiText

TABLE = """Fri Jan  2 03:04:05 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.10       Driver Version: 570.10         CUDA Version: 12.8               |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  Made-up 80GB                   On  |   00000000:0F:00.0 Off |                    3 |
| N/A   41C    P0            120W /  700W |   70000MiB /  81559MiB |     97%      Default |
+-----------------------------------------+------------------------+----------------------+
|   1  Made-up 80GB                   On  |   00000000:10:00.0 Off |                  N/A |
| N/A   39C    P0             ERR! / 700W |     100MiB /  81559MiB |    ERR!      Default |
+-----------------------------------------------------------------------------------------+
"""


def report(*, thermal="Active", util="95 %"):
    return f"""
==============NVSMI LOG==============

Timestamp                                 : Fri Jan  2 03:04:05 2026
Attached GPUs                             : 1
GPU 00000000:0B:00.0
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : {thermal}
            HW Thermal Slowdown           : {thermal}
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    Clocks Event Reasons Counters
        HW Thermal Slowdown               : 903158 us
    FB Memory Usage
        Total                             : 1000 MiB
        Used                              : 900 MiB
    Utilization
        GPU                               : {util}
    Temperature
        GPU Current Temp                  : 91 C
        GPU Shutdown Temp                 : 100 C
    GPU Power Readings
        Average Power Draw                : 250.50 W
        Current Power Limit               : 300.00 W
    Clocks
        SM                                : 900 MHz
    Max Clocks
        SM                                : 1800 MHz
    Remapped Rows
        Pending                           : Yes
"""


def looks(text):
    shown = SmiText()
    shown.read(text.encode().splitlines(keepends=True), 7.0)
    return [
        (at, {f.subject.gpu: dict(zip(f.names, f.values[0].tolist(), strict=True)) for f in batch.frames})
        for at, batch in shown.items
    ]


def test_the_table_is_a_look_at_each_device():
    [(at, devices)] = looks(TABLE)
    assert at == 1_767_323_045.0
    assert devices["gpu0"]["gpu_util_ratio"] == pytest.approx(0.97)
    assert devices["gpu0"]["gpu_ecc_uncorrected_total"] == 3
    assert devices["gpu0"]["gpu_memory_used_bytes"] == 70_000 * 2**20
    assert "gpu_power_watts" not in devices["gpu1"], "what the driver cannot read is missing, not 0"


def test_the_report_is_a_look_too():
    [(_, devices)] = looks(report())
    found = devices["00000000:0b:00.0"]
    assert found["gpu_throttled_ratio"] == found["gpu_throttled_thermal_ratio"] == 1.0
    assert found["gpu_throttled_brake_ratio"] == 0.0
    assert found["gpu_temperature_celsius"] == 91
    assert found["gpu_power_watts"] == 250.5
    assert found["gpu_sm_clock_hertz"] / found["gpu_sm_clock_max_hertz"] == 0.5
    assert found["gpu_remap_pending"] == 1.0


def test_a_date_begins_another_look():
    assert [at for at, _ in looks(TABLE + TABLE.replace("03:04:05", "03:04:15"))] == [1_767_323_045.0, 1_767_323_055.0]


@pytest.mark.parametrize(
    ("text", "rules"),
    [(report(), ["gpu_throttling"]), (report(thermal="Not Active").replace("900 MHz", "1700 MHz"), [])],
)
def test_a_thermal_limit_in_force_is_throttling_and_a_power_cap_alone_is_none(tmp_path, text, rules):
    path = tmp_path / "smi.txt"
    path.write_text(text.replace("Pending                           : Yes", "Pending                           : No"))
    assert kind_of(text.encode()) == "smi"
    found = examine([str(path)], Config()).verdict.incidents
    assert [i.rule for i in found if i.severity != "info"] == rules


def test_an_engines_log_below_the_table_is_read(tmp_path):
    path = tmp_path / "container.log"
    stats = (
        "INFO 01-02 03:10:{:02d} [loggers.py:1] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
    )
    path.write_text(TABLE + stats.format(5) + stats.format(15))
    assert any("log of vllm" in one.what for one in examine([str(path)], Config()).found)


@given(st.text(max_size=300))
def test_whatever_comes_nothing_breaks(tail):
    looks(TABLE + tail + report() + tail)
