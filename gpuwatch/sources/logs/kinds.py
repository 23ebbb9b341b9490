"""What a log line may tell besides numbers on a grid: a closed list of kinds, each with its own numbers, never its text.

A notice is an Event of `what` "notice" whose detail holds `kind`, numbers as strings and words of closed lists. Prompts,
paths, names and messages never get in: whatever a line says beyond that is read over.
"""

from __future__ import annotations

NOTICES: dict[str, str] = {
    # the KV pool and admission
    "preemption": "a running request lost its KV (mode: recompute or swap; total: cumulative where it is said)",
    "retraction": "running requests were taken back (retracted, aborted, new_token_ratio_from, new_token_ratio_to)",
    "unschedulable": "a request can never or not now be scheduled (need_tokens, have_tokens)",
    "does_not_fit": "the configured length does not fit into the KV pool (need_bytes, have_bytes, need_tokens, have_tokens; "
    "phase: prefill where a prompt of that many tokens does not fit at warm-up)",
    "queue_full": "a request was refused because the queue is full",
    "queue_timeout": "a request was refused because it had waited too long",
    "context_shift": "a slot threw away half of its context to go on (n_keep, n_left, n_discard)",
    "slot_unavailable": "a request found no slot",
    "reprocessed": "a whole prompt is computed again because its cache is gone",
    "kv_retry": "no free space in the KV cache: retried with a smaller batch",
    "dummy_skipped": "more requests were fetched than can be scheduled (fetch, schedulable)",
    # the engine and its processes
    "out_of_memory": "device memory could not be allocated (asked_bytes, free_bytes, reserved_bytes, phase)",
    "engine_dead": "the engine's core is dead; the cause stands above it",
    "watchdog_timeout": "a watchdog saw no progress",
    "collective_timeout": "a collective did not end (rank, operation, seconds): the rank named is a victim",
    "broadcast_block_wait": "a worker did not take what it was sent (seconds); also printed during long compiles",
    "process_crashed": "a process of the engine ended by itself (code)",
    "start_failed": "the engine gave up while it was starting (code); the cause stands above it",
    "killed_for_memory": "the kernel ended a process for want of host memory (own: its name is one of an engine's, 0 or 1; "
    "limited: by its container's limit, 0 or 1; resident_bytes)",
    "health_failed": "the engine failed its own health check (seconds)",
    "stopped": "the server was told to stop",
    "restarted": "another run begins in the same log",
    "memory_leak_detected": "the engine's own check of its KV pool does not add up (total, available, evictable, protected)",
    # the device
    "ecc_error": "uncorrectable ECC error",
    "xid": "the kernel reports an XID (code, pci, previous)",
    "clock_held_down": "a limit holds a device's clock down (cause: thermal or power; index)",
    "gpu_lost": "the device has fallen off the bus (pci)",
    "exporter_disconnected": "the GPU exporter lost its host engine: its values stay frozen",
    "exporter_blind": "the GPU exporter does not collect a group of metrics",
    "device_error": "a kernel failed on the device (illegal access, failed assertion, failed launch): a program, or the device",
    "slow_kernel_fallback": "a slower kernel serves the quantized weights (method)",
    # clients and transfer
    "client_disconnected": "a client went away",
    "aborted": "a request was aborted",
    "orphan_output": "output arrived for a request that nobody waits for any more",
    "sequence_not_found": "the KV manager does not know the sequence it is told of",
    "transfer_timeout": "KV did not arrive in time from the other side (seconds)",
    "transfer_failed": "KV could not be transferred",
    # requests, steps and kernels, in numbers
    "request": "one finished request (total_seconds, queue_seconds, inference_seconds, validation_seconds, …)",
    "request_failed": "a request failed in the engine (batch_size)",
    "grammar": "a request with a grammar waited (queue_seconds, validation_seconds)",
    "step": "one step (seconds, context_tokens, generation_tokens, context_requests, generation_requests)",
    "spec_decode": "speculation (mean_acceptance_length, accepted, drafted, acceptance_ratio)",
    # the start, in seconds
    "start_waits": "the launcher waits for its workers to come up",
    "weights_loaded": "weights are loaded (seconds)",
    "model_loaded": "the model is on the device (seconds, bytes)",
    "compiled": "kernels are compiled (seconds)",
    "graphs_captured": "graphs are captured (seconds, bytes)",
    "engine_initialised": "KV pool and warm-up are done (seconds)",
}
"""Kind → what it says, with the keys its detail may have beside `kind`, `count` (how many in that second) and `tp_rank`."""

TEXT_VALUES = frozenset({
    "recompute", "swap", "prefill", "decode", "start", "awq", "gptq", "fp8", "fp4", "nvfp4", "mxfp4", "marlin", "bitsandbytes",
    "gguf", "allreduce", "allgather", "reducescatter", "broadcast", "send", "recv", "alltoall", "barrier", "coalesced",
    "reduce", "gather", "scatter", "thermal", "power", "unknown",
})  # fmt: skip
"""The only words that a notice may carry as values; everything else is a number or a PCI address."""

WORST_BY: dict[str, tuple[str, ...]] = {
    "step": ("seconds",),
    "request": ("queue_seconds", "total_seconds", "inference_seconds"),
    "grammar": ("queue_seconds",),
}
"""Kinds that come many times a second: the worst of each second is told, by the first of these that it has."""
