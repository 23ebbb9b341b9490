"""Why signals are missing, said once for engines that share the reason."""

NO_STEPS = {
    "step_seconds": "steps are not timed on the page; the step ring has them",
    "step_prefill_tokens": "what a step computed is not on the page; the step ring has it",
    "step_decode_tokens": "what a step computed is not on the page; the step ring has it",
    "step_longest_prefill_tokens": "single prefill chunks are not on the page; the step ring has them",
}
NO_QUEUE_DETAIL = {
    "waiting_fit": "no engine of this kind says what would fit; the step ring does",
    "head_wait_seconds": "ages in flight are not exposed",
    "head_need_blocks": "the head of the queue is not exposed",
    "admission_stop_reason": "not exposed; the step ring says it",
}
NO_LOOP_LAG = {
    "event_loop_lag_seconds": "the front end does not time its loop; process_front_cpu_ratio says how busy it is",
}
NO_CAUSES = {
    "req_waiting_capacity": "waiting requests are not split by cause",
    "req_waiting_deferred": "waiting requests are not split by cause",
    "req_waiting_grammar": "waiting for a grammar is not told apart",
}
NO_FRAGMENTATION = {
    "kv_reserved_unused_ratio": "blocks promised and not written are not exposed",
    "kv_internal_fragmentation_ratio": "tokens in blocks are not exposed",
    "kv_external_fragmentation_ratio": "zero by construction in a paged pool",
}
NO_PAIRS = {
    "req_waiting_bootstrap": "prefill and decode are not apart here",
    "req_waiting_prealloc": "prefill and decode are not apart here",
    "req_transferring": "prefill and decode are not apart here",
}
NO_TRANSFER = {
    "kv_transfer_seconds": "transfers of KV are not on the page",
    "kv_transfer_last_seconds": "transfers of KV are not on the page",
    "kv_transfer_bytes_per_second": "transfers of KV are not on the page",
    "kv_transfer_bytes_total": "transfers of KV are not on the page",
    "kv_transfer_failed_total": "transfers of KV are not on the page",
}
NO_LORA = {
    "lora_running_adapters": "adapters are not on the page",
    "lora_waiting_adapters": "adapters are not on the page",
    "lora_slots": "adapters are not on the page",
    "lora_slots_used": "adapters are not on the page",
}
NO_SPECULATION = {
    "spec_drafts_total": "speculation is not on the page",
    "spec_draft_tokens_total": "speculation is not on the page",
    "spec_accepted_tokens_total": "speculation is not on the page",
    "spec_accept_length": "speculation is not on the page",
    "spec_accept_ratio": "speculation is not on the page",
}
