"""Writes a GGUF file of a random two-layer Llama of half a megabyte: enough for llama.cpp's server to serve nonsense."""

import struct
from pathlib import Path

import numpy as np

WIDTH, INNER, LAYERS, HEADS, CONTEXT, ALIGNMENT = 64, 128, 2, 4, 4096, 32
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
LETTERS = [chr(c) for c in range(97, 123)]
VOCABULARY = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *LETTERS, *(f"▁{c}" for c in LETTERS)]

_U32, _I32, _F32, _STRING, _ARRAY = 4, 5, 6, 8, 9
_PACK = {_U32: "<I", _I32: "<i", _F32: "<f"}


def write(path: Path) -> None:
    """The model file."""
    facts, tensors = _facts(), _tensors(np.random.default_rng(0))
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(facts))]
    head += [_string(key) + struct.pack("<I", kind) + _value(kind, value) for key, kind, value in facts]
    offset, data = 0, []
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # innermost first
        head.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
        data.append(tensor.tobytes() + b"\0" * (-tensor.nbytes % ALIGNMENT))
        offset += len(data[-1])
    front = b"".join(head)
    path.write_bytes(front + b"\0" * (-len(front) % ALIGNMENT) + b"".join(data))


def _facts() -> list[tuple[str, int, object]]:
    scores = [0.0] * 3 + [-1000.0] * 256 + [-float(n) for n in range(len(VOCABULARY) - 259)]
    kinds = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(VOCABULARY) - 259)
    sizes = {
        "context_length": CONTEXT, "embedding_length": WIDTH, "block_count": LAYERS, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "rope.dimension_count": WIDTH // HEADS,
        "vocab_size": len(VOCABULARY),
    }  # fmt: skip
    return [
        ("general.architecture", _STRING, "llama"),
        *((f"llama.{name}", _U32, size) for name, size in sizes.items()),
        ("llama.attention.layer_norm_rms_epsilon", _F32, 1e-5),
        ("tokenizer.ggml.model", _STRING, "llama"),
        ("tokenizer.ggml.tokens", _ARRAY, (_STRING, VOCABULARY)),
        ("tokenizer.ggml.scores", _ARRAY, (_F32, scores)),
        ("tokenizer.ggml.token_type", _ARRAY, (_I32, kinds)),
        ("tokenizer.ggml.bos_token_id", _U32, 1),
        ("tokenizer.ggml.eos_token_id", _U32, 2),
    ]


def _tensors(random: np.random.Generator) -> dict[str, np.ndarray]:
    def weights(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) * 0.05).astype(np.float32)

    ones = np.ones(WIDTH, np.float32)
    found = {"token_embd.weight": weights(len(VOCABULARY), WIDTH), "output_norm.weight": ones,
             "output.weight": weights(len(VOCABULARY), WIDTH)}  # fmt: skip
    for layer in range(LAYERS):
        block = {"attn_norm": ones, "ffn_norm": ones, "ffn_gate": weights(INNER, WIDTH), "ffn_up": weights(INNER, WIDTH),
                 "ffn_down": weights(WIDTH, INNER)}  # fmt: skip
        block |= {name: weights(WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        found |= {f"blk.{layer}.{name}.weight": tensor for name, tensor in block.items()}
    return found


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: int, value: object) -> bytes:
    if kind == _STRING:
        return _string(value)
    if kind == _ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(_value(inner, item) for item in items)
    return struct.pack(_PACK[kind], value)
