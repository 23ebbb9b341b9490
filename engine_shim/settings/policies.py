"""Which combinations of the policies' settings make sense. ValueError names the key and says what to change."""

from __future__ import annotations

from .keys import EngineKeys

SCHEDULING = ("fifo", "fifo_wait_limit", "priority", "shortest_prompt")
BATCHING = ("continuous", "static")
LONGEST_S = 86_400.0
MOST_DEVICES = 64


def check_policies(settings: EngineKeys) -> None:
    """Everything that concerns policies."""
    for key, allowed in (("scheduling", SCHEDULING), ("batching", BATCHING)):
        if getattr(settings, key) not in allowed:
            raise ValueError(f"{key} must be one of {', '.join(allowed)}, not {getattr(settings, key)!r}")
    _check_waits(settings)
    _check_prefill_budget(settings)
    _check_disaggregation(settings)


def _check_waits(settings: EngineKeys) -> None:
    if not 0 < settings.ageing_s <= LONGEST_S:
        raise ValueError(f"ageing_s must be above 0 and at most a day, not {settings.ageing_s}")
    if not 0 <= settings.wait_limit_s <= LONGEST_S:
        raise ValueError(f"wait_limit_s must be between 0 and a day, not {settings.wait_limit_s}; 0 means no limit")
    if settings.scheduling == "fifo_wait_limit":
        if not settings.wait_limit_s:
            raise ValueError('scheduling = "fifo_wait_limit" needs wait_limit_s')
        if settings.admission != "bypass":
            raise ValueError(
                'scheduling = "fifo_wait_limit" limits how long others may pass a blocked head; set admission = '
                '"bypass", or scheduling = "fifo"'
            )
    elif settings.wait_limit_s and settings.scheduling != "shortest_prompt":
        raise ValueError(
            f'wait_limit_s has no meaning with scheduling = "{settings.scheduling}"; remove it, or set scheduling = '
            '"fifo_wait_limit" or "shortest_prompt"'
        )


def _check_prefill_budget(settings: EngineKeys) -> None:
    if not 0 < settings.prefill_step_share <= 1:
        raise ValueError(f"prefill_step_share must be above 0 and at most 1, not {settings.prefill_step_share}")
    if not 0 <= settings.prefill_step_seconds <= 10:
        raise ValueError(f"prefill_step_seconds must be between 0 and 10, not {settings.prefill_step_seconds}")
    if settings.max_long_prefills < 0:
        raise ValueError("max_long_prefills must not be negative; 0 means no limit")
    if settings.long_prefill_tokens < 1:
        raise ValueError(f"long_prefill_tokens must be at least 1, not {settings.long_prefill_tokens}")
    limited = ["prefill_step_share"] if settings.prefill_step_share < 1 else []
    limited += ["prefill_step_seconds"] if settings.prefill_step_seconds else []
    if len(limited) > 1:
        raise ValueError("prefill_step_share and prefill_step_seconds limit the same thing; remove one of them")
    if limited and not settings.chunked_prefill:
        raise ValueError(f"{limited[0]} cuts prompts, which needs chunked_prefill; set it or remove {limited[0]}")


def _check_disaggregation(settings: EngineKeys) -> None:
    for key in ("prefill_devices", "decode_devices"):
        if not 0 <= getattr(settings, key) <= MOST_DEVICES:
            raise ValueError(f"{key} must be between 0 and {MOST_DEVICES}, not {getattr(settings, key)}")
    if not 1e3 <= settings.kv_transfer_bytes_per_s <= 1e15:
        raise ValueError(
            f"kv_transfer_bytes_per_s must be between 1e3 and 1e15, not {settings.kv_transfer_bytes_per_s}"
        )
    if not 0 <= settings.kv_transfer_latency_s <= 60:
        raise ValueError(f"kv_transfer_latency_s must be between 0 and 60, not {settings.kv_transfer_latency_s}")
    if bool(settings.prefill_devices) != bool(settings.decode_devices):
        raise ValueError(
            "prefill_devices and decode_devices belong together: set both to at least 1, or both to 0 for engines that "
            "do everything"
        )
    if settings.prefill_devices and settings.batching == "static":
        raise ValueError('batching = "static" has no meaning where prefill and decode are apart; remove it')
