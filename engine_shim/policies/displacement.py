"""Which running requests must go so that the queue's head can come in: as few as possible, and none in vain."""

from __future__ import annotations

from collections.abc import Sequence

from ..kv.admission import Admission
from ..request import Request


def victims_for(
    need_blocks: int, candidates: Sequence[Request], admission: Admission, running: int, max_num_seqs: int
) -> list[Request]:
    """The first of `candidates` whose slots and blocks suffice for `need_blocks`; none if all of them would not do.

    Blocks that a candidate shares with others are counted as if they became free: where that was wrong, the head is
    refused again, and more or none can go.
    """
    freed = 0
    for count, request in enumerate(candidates, start=1):
        freed += max(len(request.blocks), request.reserved_blocks)
        left = running - count
        if left < max_num_seqs and admission.refusal(need_blocks - freed, left) is None:
            return list(candidates[:count])
    return []
