"""Numbers that cannot be trusted, starts and deaths, several replicas, transfers: each with what it is not."""

from gpuwatch.model import Subject
from tests.clues.looks import Evidence, candidates_of, first, named


def test_a_page_without_engine_series():
    evidence = Evidence("").failed(0, "no engine series on the page (9 names, all of the process itself)")
    found = first(evidence)
    assert (found.rule, found.mechanism, found.action) == ("stale_telemetry", "no_engine_series", "fix_telemetry")


def test_a_page_that_times_out_is_not_a_wrong_page():
    assert named(Evidence("").failed(0, "timeout: after 2 s")) == []


def test_counters_that_fall_and_rise_again_are_of_several_processes():
    evidence = Evidence()
    for n, done in enumerate((40, 12, 41, 13, 44)):
        evidence.look(5 * n, req_running=3, req_waiting=0, req_finished_total=done)
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("stale_telemetry", "several_processes")


def test_a_restart_falls_once_and_near_zero():
    evidence = Evidence()
    for n, done in enumerate((400, 410, 3, 14, 25)):
        evidence.look(5 * n, req_running=3, req_waiting=0, req_finished_total=done)
    assert named(evidence) == []


def test_an_exporter_that_lost_its_host_engine():
    found = first(Evidence("").say(0, "exporter_disconnected", times=3))
    assert (found.rule, found.mechanism) == ("stale_telemetry", "exporter_disconnected")


def test_power_with_an_energy_counter_that_stands_is_frozen():
    evidence = Evidence("")
    for n in range(6):
        evidence.gpu(30 * n, power=312.5, energy=8.1e6, util=0.9)
    assert first(evidence).mechanism == "frozen_page"


def test_an_energy_counter_that_moves_is_alive():
    evidence = Evidence("")
    for n in range(6):
        evidence.gpu(30 * n, power=312.5, energy=8.1e6 + 9400 * n, util=0.9)
    assert named(evidence) == []


def test_utilisation_is_not_measured_on_an_instance():
    evidence = Evidence("").gpu_facts("GPU-1/2", mig_profile="2g.20gb").gpu(0, "GPU-1/2", util=0.0, gr=0.8)
    assert named(evidence) == ["(stale_telemetry)"]


def test_an_idle_instance_is_idle():
    evidence = Evidence("").gpu_facts("GPU-1/2", mig_profile="2g.20gb").gpu(0, "GPU-1/2", util=0.0, gr=0.0)
    assert named(evidence) == []


def test_a_shift_that_repeats_is_a_generation_without_an_end():
    evidence = Evidence("llamacpp")
    for n in range(6):
        evidence.say(20 * n, "context_shift", n_left=4000, n_discard=2000)
    found = first(evidence.say(130, "slot_unavailable"))
    assert (found.rule, found.severity) == ("runaway_generation", "page")


def test_one_shift_is_a_long_answer():
    assert named(Evidence("llamacpp").say(0, "context_shift", n_left=4000, n_discard=2000)) == []


def test_outputs_for_nobody():
    evidence = Evidence("sglang").line(0, running=3, waiting=0, kv=0.1, gen=90.0)
    found = first(evidence.say(1, "orphan_output", times=200))
    assert (found.rule, found.mechanism) == ("retry_storm", "work_without_client")
    assert named(Evidence("sglang").say(1, "orphan_output")) == []


def test_clients_that_give_up_and_come_back():
    evidence = Evidence()
    for n in range(4):
        evidence.look(
            15 * n,
            req_running=40,
            req_waiting=20,
            kv_usage_ratio=0.6,
            req_aborted_total=30 * n,
            req_finished_total=10 * n,
            generated_tokens_total=500 * n,
        )
    assert "retry_storm" in candidates_of(first(evidence))


def test_memory_that_lay_in_pieces():
    evidence = Evidence().line(0, running=4, waiting=0, gen=100.0)
    evidence.say(9, "out_of_memory", asked_bytes=4.0e8, free_bytes=3.4e8, reserved_bytes=4.2e8)
    assert first(evidence).rule == "memory_fragmentation"


def test_memory_that_nobody_had_planned():
    evidence = Evidence().line(0, running=4, waiting=0, gen=100.0)
    evidence.say(9, "out_of_memory", asked_bytes=3.2e8, free_bytes=2.2e8, reserved_bytes=9e6).say(10, "engine_dead")
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("engine_crash", "unplanned_allocation")
    assert "memory_fragmentation" in {r.rule for r in found.ruled_out}


def test_memory_that_is_missing_at_the_start():
    evidence = Evidence().say(0, "out_of_memory", asked_bytes=2e9, free_bytes=1e8, reserved_bytes=1e7, phase="start")
    assert first(evidence).rule == "start_failure"


def test_a_length_that_does_not_fit_is_refused_at_start():
    found = first(Evidence().say(0, "does_not_fit", need_bytes=16e9, have_bytes=9e9))
    assert (found.rule, found.mechanism) == ("start_failure", "does_not_fit")


def test_phases_of_a_start_are_information():
    evidence = (
        Evidence()
        .say(0, "weights_loaded", seconds=41)
        .say(60, "compiled", seconds=12)
        .say(90, "graphs_captured", seconds=20)
    )
    found = first(evidence)
    assert (found.rule, found.severity, found.mechanism) == ("cold_start", "info", "weights")
    assert named(Evidence().say(0, "weights_loaded", seconds=2)) == []


def test_a_first_request_cut_off_during_warm_up():
    evidence = Evidence("trtllm").say(0, "step", seconds=140, context_tokens=30, generation_tokens=0)
    found = first(evidence.say(1, "client_disconnected").say(2, "sequence_not_found"))
    assert (found.rule, found.mechanism) == ("start_failure", "warm_up_aborted")


def test_a_client_that_leaves_a_working_engine_is_no_incident():
    evidence = Evidence("trtllm").say(0, "step", seconds=0.02, context_tokens=30, generation_tokens=4)
    assert named(evidence.say(1, "client_disconnected")) == []


def replicas(*levels: tuple[float, float, float], ranks: bool = False) -> Evidence:
    evidence = Evidence("")
    for n in range(3):
        for k, (running, waiting, kv) in enumerate(levels):
            name, rank = ("e1", k) if ranks else (f"r{k}", 0)
            evidence.look(
                10 * n,
                name,
                rank,
                req_running=running,
                req_waiting=waiting,
                kv_usage_ratio=kv,
                generated_tokens_total=700 * n,
            )
    return evidence


def test_one_replica_is_full_while_others_have_room():
    found = first(replicas((30, 50, 0.99), (2, 0, 0.08), (3, 0, 0.1), (1, 0, 0.04)))
    assert (found.rule, found.mechanism, found.action) == ("replica_imbalance", "router", "reroute")
    assert "overload" in {r.rule for r in found.ruled_out}


def test_ranks_of_one_engine_may_be_as_unlike():
    assert first(replicas((30, 50, 0.99), (2, 0, 0.1), ranks=True)).mechanism == "ranks"


def test_replicas_that_share_their_load_are_no_incident():
    assert named(replicas((30, 0, 0.6), (28, 1, 0.55), (33, 0, 0.62))) == []


def test_all_replicas_full_is_no_imbalance():
    assert all(i != "replica_imbalance" for i in named(replicas((30, 50, 0.99), (31, 48, 0.98))))


def test_a_replica_that_is_gone_while_another_queues():
    evidence = (
        replicas((30, 12, 0.7), (20, 0, 0.5))
        .failed(40, "refused: connection", "r1")
        .failed(60, "refused: connection", "r1")
    )
    evidence.look(60, "r0", req_running=30, req_waiting=44, kv_usage_ratio=0.8, generated_tokens_total=9000)
    assert "capacity_loss" in named(evidence)


def test_transfers_that_fail_on_many_ranks_point_at_the_other_side():
    evidence = Evidence()
    for rank in range(4):
        evidence.event(0, "notice", Subject("e1", rank), {"kind": "transfer_timeout"})
    found = first(evidence)
    assert found.rule == "pd_transfer_stall"
    assert "other side" in found.summary


def test_decode_memory_that_is_full_is_back_pressure():
    evidence = Evidence("sglang").look(
        0, req_running=60, req_waiting=0, req_waiting_prealloc=40, req_transferring=2, kv_usage_ratio=0.98
    )
    found = first(evidence)
    assert (found.rule, found.mechanism) == ("pd_transfer_stall", "decode_memory")


def test_more_fetched_than_can_be_received():
    evidence = Evidence("trtllm")
    for n in range(3):
        evidence.say(2 * n, "dummy_skipped", fetch=512, schedulable=64).say(2 * n + 1, "step", seconds=0.101)
    assert first(evidence).rule == "pd_transfer_stall"


def test_deferred_requests_that_fill_the_cache_wait_for_remote_kv():
    evidence = Evidence()
    for n in range(4):
        evidence.look(
            15 * n,
            req_running=20 - 5 * n,
            req_waiting=8 + 8 * n,
            req_waiting_deferred=7 + 8 * n,
            kv_usage_ratio=0.3 + 0.1 * n,
        )
    assert first(evidence).rule == "pd_transfer_stall"


def test_transfers_that_the_engine_counts_as_failed():
    evidence = Evidence("sglang")
    for n in range(2):
        evidence.look(20 * n, req_running=3, req_waiting=0, kv_usage_ratio=0.1, kv_transfer_failed_total=9 * n)
    assert first(evidence).rule == "pd_transfer_stall"


def test_a_health_check_that_fails_alone_is_a_part_that_does_not_answer():
    found = first(Evidence("sglang").say(0, "health_failed", seconds=20))
    assert found.rule == "engine_hang"
    assert "overload" in candidates_of(found)


def test_an_engine_that_was_put_to_sleep_admits_nobody_and_is_well():
    evidence = Evidence()
    for n in range(3):
        evidence.look(20 * n, req_running=0, req_waiting=2, kv_usage_ratio=0.0, engine_asleep=1)
    assert named(evidence) == []


def test_prompts_computed_again_for_want_of_their_cache():
    assert first(Evidence("llamacpp").say(0, "reprocessed", times=6)).rule == "prefix_cache_collapse"
    assert named(Evidence("llamacpp").say(0, "reprocessed")) == ["(prefix_cache_collapse)"], (
        "once: told, and no incident"
    )


def test_a_device_that_left_the_bus():
    assert first(Evidence("").say(0, "gpu_lost", engine="kernel")).rule == "gpu_hardware_fault"


def test_a_start_that_was_followed_by_service_is_history():
    evidence = Evidence().say(0, "weights_loaded", seconds=80).say(90, "compiled", seconds=40)
    for n in range(8):
        evidence.line(100 + 10 * n, running=4, waiting=0, kv=0.1, gen=200.0)
    assert named(evidence) == []


def test_clients_that_leave_without_a_queue_are_no_storm():
    evidence = Evidence()
    for n in range(4):
        evidence.look(
            15 * n,
            req_running=4,
            req_waiting=0,
            req_aborted_total=30 * n,
            req_finished_total=10 * n,
            generated_tokens_total=500 * n,
        )
    assert named(evidence) == []


def test_another_programs_page_is_a_remark_and_a_process_without_an_engine_is_a_ticket():
    strange = first(Evidence("").failed(0, "no dialect recognises this page (7 metrics, 900 bytes): it is a router's"))
    assert (strange.rule, strange.severity, strange.mechanism) == ("stale_telemetry", "info", "another_page")
    assert "router" in strange.summary
    own = "no dialect recognises this page (7 metrics, 900 bytes): only the process's own metrics are on it"
    assert first(Evidence("").failed(0, own)).severity == "ticket"
