"""Keys for full blocks of a request's tokens, such that equal keys mean equal tokens from the very first one.

Real requests have token ids, and a block's key is a digest chained to the key of the block before it. Modelled requests
have no ids: there `prefix_key` names the shared content, and everything after `prefix_tokens` is their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable
from hashlib import blake2b

from ..request import Request

_DIGEST_BYTES = 16


def block_keys(request: Request, blocks: int, block_tokens: int, own: bool = False) -> list[Hashable]:
    """Keys of the request's first `blocks` full blocks; fewer if it has fewer whose content is known.

    For modelled requests only the shared prefix has keys, unless `own` is set: after a preemption a request may find
    its own tokens again, and nobody else can.
    """
    if request.prompt:
        return _chained(request, blocks, block_tokens)
    shared = min(blocks, request.prefix_tokens // block_tokens) if request.prefix_key else 0
    keys: list[Hashable] = [(request.prefix_key, index) for index in range(shared)]
    if own:
        keys += [(request.id, index) for index in range(shared, blocks)]
    return keys


def _chained(request: Request, blocks: int, block_tokens: int) -> list[Hashable]:
    """Digests over token ids, prompt and output. Kept on the request: a blocked head is looked up in every step."""
    keys = request.block_keys
    full = min(blocks, request.total_tokens // block_tokens)
    if len(keys) < full:
        ids = request.prompt + request.output if full * block_tokens > request.prompt_tokens else request.prompt
        parent = keys[-1] if keys else b""
        for start in range(len(keys) * block_tokens, full * block_tokens, block_tokens):
            content = array("q", ids[start : start + block_tokens]).tobytes()
            parent = blake2b(parent + content, digest_size=_DIGEST_BYTES).digest()
            keys.append(parent)
    return list(keys[:full])
