"""The command line: `serve` (also when no command is named), `simulate` and others. Options only; serving.py does the work.

Every key of EngineSettings is an option of the same name. Bad values end with exit code 2 and name the option or key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from engine_shim import __version__
from engine_shim.model.quantized.stored import WEIGHT_TYPES
from engine_shim.model.shapes import BYTES_PER_VALUE, KV_TYPES
from engine_shim.settings.compute import SPECULATIVE
from engine_shim.settings.engine import ADMISSION, KV_LAYOUT, PREFIX_EVICT, RESERVE, EngineSettings
from engine_shim.settings.policies import BATCHING, SCHEDULING

# Help of each EngineSettings key.
_HELP = {
    "model": "Shape (tiny, 100m, 1b, 7b, 8b, 13b, 70b) or a local folder with config.json and *.safetensors.",
    "max_num_seqs": "Requests that may hold KV at the same time.",
    "max_step_tokens": "Token budget of one step.",
    "chunked_prefill": "Cut prompts to what is left of a step's budget.",
    "max_chunk_tokens": "Largest prefill chunk of one request in a step; 0: the budget only.",
    "block_tokens": "Token slots of a KV block.",
    "kv_pool_tokens": "Size of the KV pool; 0: 16384 on torch, what the device has room for on a model.",
    "kv_pool_ratio": "Share of the modelled device's KV room that is used.",
    "watermark_ratio": "Share of the pool that admission keeps free.",
    "admission": "Whether requests that fit may pass a blocked head of the queue.",
    "reserve": "What must fit at admission.",
    "batching": "continuous: requests join and leave at any step; static: one whole batch after the other, padded.",
    "scheduling": "Order of service: fifo; fifo_wait_limit; priority classes with ageing; shortest_prompt first.",
    "wait_limit_s": "Wait after which nobody passes a request any more (fifo_wait_limit, shortest_prompt); 0: none.",
    "ageing_s": "With priority: interactive requests that come later than this do not pass a batch request.",
    "prefill_step_share": "Share of max_step_tokens that prefills may take while others decode.",
    "prefill_step_seconds": "Step time that prefills are cut to while others decode, as measured; 0: no such limit.",
    "max_long_prefills": "Long prompts that may be computed at the same time; 0: no limit.",
    "prefill_devices": "Engines that only compute prompts, each on tensor_parallel devices; 0: one engine does all.",
    "decode_devices": "Engines that decode what prefill engines computed; `simulate` only.",
    "kv_transfer_bytes_per_s": "Bandwidth of the link into each decode engine.",
    "kv_transfer_latency_s": "Time that a transfer takes on top of its bytes.",
    "long_prefill_tokens": "From how many tokens on a prompt is long, for max_long_prefills.",
    "prefix_cache": "Reuse the KV of common prompt prefixes.",
    "prefix_evict": "Which unused prefix block is forgotten first: lru, released longest ago; fifo, published first.",
    "prefix_cache_ratio": "Share of the pool that unused prefix blocks may fill.",
    "rate_limit_per_s": "Requests per second that each API key, or tenant, may send; 0: no limit.",
    "rate_limit_burst": "Requests that may come at once under the rate limit; 0: one second's worth.",
    "max_concurrency": "Requests in the engine, waiting and running, beyond which others are refused; 0: no limit.",
    "queue_target_s": "Seconds of requests, at the measured service rate, that may wait; 0: only max_waiting limits.",
    "queued_tokens_target_s": "The same in prompt tokens: seconds of them that may wait; 0: no limit.",
    "deadline_rejection": "Refuse what cannot have its first token by its deadline; drop what has missed it.",
    "response_cache_entries": "Answers kept for refused requests of the same prompt at temperature 0; 0: none.",
    "kv_layout": "paged: any free block serves any request; contiguous: a request's KV is one run, placed first fit.",
    "max_model_len": "Longest prompt plus output; for a folder at most, and by default, what its config.json says.",
    "max_waiting": "Queue length beyond which requests are refused.",
    "accept_oversized": "Queue requests that can never fit the pool instead of refusing them.",
    "dtype": "Type of weights and activations; default fp32 on torch, bf16 on a model.",
    "kv_dtype": "Type of the KV cache; on torch, default that of the weights; int8 has a scale for each token and head.",
    "tensor_parallel": "GPUs of the modelled engine.",
    "least_step_s": "On torch: seconds that a step takes at least; a small model then stands for a slower device.",
    "memory_ratio": "Share of the modelled device's memory that the engine may use.",
    "weights": "How linear layers hold their weights; dtype: as `dtype` says.",
    "quantization_fallback": "Unpack quantized weights to 16 or 32 bits before each product, as if no kernel took them.",
    "speculative": "ngram: guess tokens from the request's own text and check several in one step.",
    "speculative_tokens": "Tokens of a draft at most.",
    "speculative_noise": "Share of draft tokens that are replaced by wrong ones.",
    "speculative_acceptance": "On a model: chance that a draft token is accepted if those before it were.",
}
_CHOICES = {
    "admission": ADMISSION,
    "reserve": RESERVE,
    "batching": BATCHING,
    "scheduling": SCHEDULING,
    "kv_layout": KV_LAYOUT,
    "prefix_evict": PREFIX_EVICT,
    "dtype": tuple(BYTES_PER_VALUE),
    "kv_dtype": KV_TYPES,
    "weights": WEIGHT_TYPES,
    "speculative": SPECULATIVE,
}


class _ServeByDefault(click.Group):
    """`python -m engine_shim --port 1` is `python -m engine_shim serve --port 1`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("--help", "--version")):
            args = ["serve", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*_APART, "serve"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _APART:
            return _apart(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What can be measured, each study by its module. The wheel comes without them."""
        if find_spec("engine_shim.studies") is None:
            return
        with formatter.section(
            "Studies, each a module of its own: `python -m engine_shim.studies.NAME` prints a table"
        ):
            formatter.write_dl(list(import_module("engine_shim.studies").STUDIES.items()))


# numpy and the scenario reader are not wanted by the server. Name of a command: its module, and what it is there.
_APART = {
    "calibrate": ("engine_shim.calibrate.command", "main"),
    "schedule": ("engine_shim.demand.schedule", "schedule"),
    "simulate": ("engine_shim.simulation.command", "simulate"),
}


def _apart(name: str) -> click.Command:
    module, attribute = _APART[name]
    command: click.Command = getattr(import_module(module), attribute)
    return command


@click.group(cls=_ServeByDefault)
@click.version_option(__version__, prog_name="engine_shim")
def main() -> None:
    """The bundled inference engine: small, real and instrumented."""


def _settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option for each key of EngineSettings, passed only where it was given."""
    for field in reversed(dataclasses.fields(EngineSettings)):
        flag = "--" + field.name.replace("_", "-")
        kind: Any = click.Choice(_CHOICES[field.name]) if field.name in _CHOICES else type(field.default)
        text = _HELP.get(field.name, "")
        if "default" not in text:
            text = f"{text} [default: {field.default}]"
        if kind is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", field.name, default=None, help=text)
        else:
            option = click.option(flag, field.name, type=kind, default=None, help=text)
        command = option(command)
    return command


@main.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: any free one.")
@click.option(
    "--runner",
    type=click.Choice(["torch", "model"]),
    default="torch",
    show_default=True,
    help="Compute tokens, or take as long as a modelled device would.",
)
@click.option(
    "--device",
    help="cpu or cuda for torch (default cpu); h100, a100, … or a profile (*.toml) for model (default h100).",
)
@click.option("--seed", default=0, show_default=True, help="Seed of random weights.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="CPU threads of torch.")
@click.option("--served-model-name", help="Name in the API; default: the model's.")
@click.option("--eos-token-id", multiple=True, type=click.IntRange(0), help="Token that ends an output; repeatable.")
@click.option("--engine-name", default="shim", show_default=True, help="Name of this engine in its telemetry.")
@click.option("--rank", default=0, show_default=True, type=click.IntRange(0), help="Number of this engine of the name.")
@click.option("--ring/--no-ring", default=False, help="Write the step ring (docs/ring.md).")
@click.option(
    "--ring-dir", type=click.Path(path_type=Path), help="Where; default $GPUWATCH_RING_DIR or /dev/shm/gpuwatch."
)
@click.option("--otlp-endpoint", help="Send spans there (OTLP over HTTP); default $OTEL_EXPORTER_OTLP_ENDPOINT.")
@click.option("--vllm-page/--no-vllm-page", default=False, help="Show /metrics under vLLM's names.")
@click.option(
    "--fault",
    multiple=True,
    metavar="KIND:KEY=NUMBER,…",
    help="Let something break, e.g. hung_step:at_s=60,until_s=90 (seconds after the start); see docs/faults.md.",
)
@click.option(
    "--admin/--no-admin",
    default=False,
    help="Let loopback clients begin and end faults at /admin/faults (docs/faults.md).",
)
@click.option("--max-body-bytes", default=8 << 20, show_default=True, type=click.IntRange(1024), help="Largest body.")
@click.option("--log-level", default="warning", show_default=True, type=click.Choice(["info", "warning", "error"]))
@_settings_options
def serve(**options: Any) -> None:
    """Serve a model over HTTP, in real time."""
    from engine_shim.serving import ServeOptions, run

    keys = [field.name for field in dataclasses.fields(EngineSettings)]
    given = {key: value for key in keys if (value := options.pop(key)) is not None}
    try:
        run(ServeOptions(**options), given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
