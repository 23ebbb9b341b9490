"""Where a request's text has said the same before: an index of its n-grams that grows with the output."""

from __future__ import annotations

SIZES = (4, 3, 2)  # n-grams that are looked up, the longest first: a longer match is a better guess


class NgramIndex:
    """The tokens of one request, and for each n-gram in them what followed its latest occurrence."""

    def __init__(self, prompt: list[int]) -> None:
        self._prompt_tokens = len(prompt)
        self._ids = list(prompt)
        self._follows: dict[tuple[int, ...], int] = {}  # position after the latest occurrence that has a successor
        self._indexed = 0  # tokens whose n-grams are in it; the last token's wait for a successor
        self._index()

    def extend(self, output: list[int]) -> None:
        """Take in what the output has now, beyond what it had."""
        new = output[len(self._ids) - self._prompt_tokens :]
        if new:
            self._ids += new
            self._index()

    def following(self, tokens: int) -> list[int]:
        """At most `tokens` tokens that followed the last occurrence of the latest n-gram; empty if there is none."""
        ids = self._ids
        for size in SIZES:
            if size >= len(ids):
                continue
            position = self._follows.get(tuple(ids[-size:]))
            if position is not None:
                return ids[position : position + tokens]
        return []

    def _index(self) -> None:
        ids, last = self._ids, len(self._ids) - 1
        for end in range(self._indexed, last):
            for size in SIZES:
                if end + 1 >= size:
                    self._follows[tuple(ids[end + 1 - size : end + 1])] = end + 1
        self._indexed = max(last, self._indexed)
