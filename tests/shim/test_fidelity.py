"""The modelled device next to published measurements: the data is whole, and the quick errors are as the page says."""

import statistics
from collections.abc import Callable

import pytest

from engine_shim.studies import fidelity, fidelity_torch
from engine_shim.studies.fidelity_published import Compared, compare, sources

QUICK = ("trtllm-0_6", "lambda", "yobitel", "musgrave", "vllm-19996", "vllm-10517")


@pytest.fixture(scope="module")
def rows() -> list[Compared]:
    return list(compare(QUICK.__contains__))


def median_error(rows: list[Compared], keep: Callable[[Compared], bool]) -> float:
    errors = [abs(row.error_ratio) for row in rows if keep(row)]
    assert errors
    return statistics.median(errors)


def test_every_number_has_a_source_that_can_be_looked_up(rows: list[Compared]) -> None:
    known = sources()
    assert {row.source for row in rows} == set(QUICK)
    assert all(known[name]["url"].startswith("https://") and known[name]["how"] for name in known)
    assert all(row.published > 0 and row.predicted > 0 for row in rows)


def test_three_gpus_and_two_sizes_are_predicted(rows: list[Compared]) -> None:
    assert {"h100", "l40s", "a100"} <= {row.device for row in rows}
    assert {"llama2-7b fp8", "llama2-70b fp8", "7b bf16", "70b bf16"} <= {row.model for row in rows}
    assert {row.metric for row in rows} == {"throughput", "ttft", "tpot", "kv tokens", "max concurrency"}


def test_throughput_of_one_gpu_is_predicted_within_a_fifth(rows: list[Compared]) -> None:
    assert median_error(rows, lambda r: r.metric == "throughput" and r.gpus == 1) < 0.2


def test_time_per_token_of_a_quiet_engine_is_predicted_within_a_tenth(rows: list[Compared]) -> None:
    """vLLM of 2026 with one client; engines of 2024 took longer for reasons that are not the device's."""
    assert median_error(rows, lambda r: r.metric == "tpot" and r.load.startswith("1 clients")) < 0.1


def test_room_for_kv_is_predicted_within_an_eighth(rows: list[Compared]) -> None:
    assert median_error(rows, lambda r: r.metric == "max concurrency") < 0.125


@pytest.mark.nightly
def test_queues_of_tensorrt_llm_are_predicted_within_a_seventh() -> None:
    rows = list(compare("trtllm-1_0".__eq__))
    assert median_error(rows, lambda r: r.model == "8b fp8") < 0.07
    assert median_error(rows, lambda r: r.model == "70b fp8") < 0.14


def test_the_command_prints_each_number_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["musgrave", "vllm-19996"]) == 0
    printed = capsys.readouterr().out
    assert "johnmusgrave.com" in printed
    assert "1 clients, 1024 → 128" in printed
    assert "metric max concurrency" in printed


def test_an_unknown_source_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert fidelity.main(["nvidia"]) == 2
    assert "trtllm-1_0" in capsys.readouterr().err


def test_a_load_of_the_cpu_study_is_noted_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step that computed something is there with what it was asked for; a small load, so that it is quick."""
    monkeypatch.setitem(fidelity_torch.LOADS, "tiny", (6, 60, 12))
    served, _ = fidelity_torch.serve("tiny")
    assert len(served.demands) == len(served.seconds) > 10
    assert all(seconds > 0 for seconds in served.seconds)
    sampled = sum(demand[1] for demand in served.demands)
    assert 6 <= sampled <= 6 * 12


def test_a_step_served_several_times_takes_its_lower_quartile():
    runs = [fidelity_torch.Served([(1.0,), (2.0,)], [taken, 2 * taken]) for taken in (5.0, 1.0, 3.0, 2.0, 4.0)]
    assert fidelity_torch.lower_quartile(runs).seconds == [2.0, 4.0]
    with pytest.raises(ValueError, match="same steps"):
        fidelity_torch.lower_quartile([runs[0], fidelity_torch.Served([(1.0,)], [1.0])])
