"""Measurements of what the engine's mechanisms do: `python -m engine_shim.studies.NAME` prints a table (docs/engine.md)."""

# What `python -m engine_shim --help` says of each.
STUDIES = {
    "batching": "Static against continuous batching, on output lengths that differ.",
    "disaggregated": "Prefill and decode on devices of their own, over links of several speeds.",
    "fidelity": "The modelled device's predictions next to published measurements.",
    "fidelity_torch": "A fitted profile's predictions next to this machine's CPU.",
    "kv_layouts": "Where KV memory goes: paged and contiguous, grown and reserved.",
    "kv_precision": "What KV in fewer bits costs in accuracy.",
    "memory": "Memory of a simulated engine after ever more requests.",
    "overload": "Goodput under overload, with and without protection.",
    "policies": "What scheduling policies do to who waits, and for how long.",
    "quantization": "What weights in fewer bits cost and bring on the torch runner.",
    "speculation": "What speculative decoding brings, by load and by how often drafts are right.",
    "virtual_time": "Simulated seconds in a CPU second.",
}
