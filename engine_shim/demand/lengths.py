"""Token length distributions of a scenario: how long prompts and answers are.

A distribution maps uniform numbers in [0, 1) to token counts, so that one definition serves both the seeded draws of a
stream and its exact-enough moments (the map applied to an even grid). All results are integers ≥ 1. Lengths that are
shares of the KV pool are resolved when the pool's size is known, which is why every map takes `pool_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import numpy as np

_GRID = (np.arange(4096) + 0.5) / 4096
_NORMAL = NormalDist()


class LengthError(ValueError):
    """A length distribution that makes no sense; `key` is the part of it that is wrong ("" for the whole)."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
        self.message = message


class Lengths(Protocol):
    """A distribution of token counts."""

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """Token counts (int64, ≥ 1) for uniform numbers `u` in [0, 1), on a pool of `pool_tokens`."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same length."""

    value: int

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """See Lengths."""
        return np.full(u.shape, self.value, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from `low` to `high`, both included, equally often."""

    low: int
    high: int

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """See Lengths."""
        return self.low + np.floor(u * (self.high - self.low + 1)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class PoolUniform:
    """Uniform between two shares of the KV pool."""

    low_ratio: float
    high_ratio: float

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """See Lengths."""
        shares = self.low_ratio + u * (self.high_ratio - self.low_ratio)
        return np.maximum(np.rint(shares * pool_tokens), 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal with the given median; `sigma` is the deviation of the logarithm; cut at `low` and `high`."""

    median: float
    sigma: float
    low: int
    high: int

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """See Lengths."""
        z = np.array([_NORMAL.inv_cdf(p) for p in np.clip(u, 1e-9, 1 - 1e-9).tolist()])
        return np.clip(np.rint(self.median * np.exp(self.sigma * z)), self.low, self.high).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Mix:
    """A mixture: with probability `shares[i]` the length follows `parts[i]`. The shares sum to 1."""

    shares: tuple[float, ...]
    parts: tuple[Lengths, ...]

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """See Lengths."""
        result = np.empty(u.shape, dtype=np.int64)
        edges = np.concatenate([[0.0], np.cumsum(self.shares)])
        edges[-1] = 1.0
        for share, part, low, high in zip(self.shares, self.parts, edges[:-1], edges[1:], strict=True):
            chosen = (u >= low) & (u < high)
            within = np.clip((u[chosen] - low) / share, 0.0, 1 - 1e-12)
            result[chosen] = part.tokens(within, pool_tokens)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """As often as in a recording; `sorted_tokens` are all its lengths, ascending."""

    sorted_tokens: np.ndarray

    def tokens(self, u: np.ndarray, pool_tokens: int) -> np.ndarray:
        """See Lengths."""
        return self.sorted_tokens[np.floor(u * len(self.sorted_tokens)).astype(np.int64)]


def grid_tokens(lengths: Lengths, pool_tokens: int) -> np.ndarray:
    """4096 equally likely lengths of the distribution, for its mean and other moments."""
    return lengths.tokens(_GRID, pool_tokens).astype(float)


def _no_recordings(name: str) -> Recorded:
    raise LengthError("trace", "there are no recordings here")


def parse_lengths(value: object, recorded: Callable[[str], Recorded] = _no_recordings) -> Lengths:
    """A distribution from its TOML form (docs/scenario.md); `recorded` finds what the name of a trace stands for.

    Raises LengthError with the key that is wrong.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return Fixed(_whole(value, ""))
    if not isinstance(value, dict):
        raise LengthError("", "a length is an integer or a table such as { uniform = [50, 300] }")
    kinds = [kind for kind in _KINDS if kind in value]
    if len(kinds) != 1:
        raise LengthError("", f"exactly one of {', '.join(_KINDS)} is needed")
    kind = kinds[0]
    for key in value:
        if key != kind and not (kind == "lognormal" and key in ("sigma", "min", "max")):
            raise LengthError(key, f"unknown key beside `{kind}`")
    if kind == "mix":
        return _parse_mix(value, recorded)
    return recorded(_name(value["trace"])) if kind == "trace" else _PARSERS[kind](value)


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise LengthError("trace", f"needs the name of a trace, got {value!r}")
    return value


def _parse_fixed(value: dict) -> Lengths:
    return Fixed(_whole(value["fixed"], "fixed"))


def _parse_uniform(value: dict) -> Lengths:
    low, high = _pair(value["uniform"], "uniform")
    low_tokens, high_tokens = _whole(low, "uniform"), _whole(high, "uniform")
    if low_tokens > high_tokens:
        raise LengthError("uniform", f"the range runs backwards: {low_tokens} > {high_tokens}")
    return Uniform(low_tokens, high_tokens)


def _parse_pool_uniform(value: dict) -> Lengths:
    low, high = (_number(x, "pool_uniform") for x in _pair(value["pool_uniform"], "pool_uniform"))
    if not 0 < low <= high <= 1:
        raise LengthError("pool_uniform", f"needs 0 < low ≤ high ≤ 1, got {low} and {high}")
    return PoolUniform(low, high)


def _parse_lognormal(value: dict) -> Lengths:
    median = _number(value["lognormal"], "lognormal")
    sigma = _number(value.get("sigma", 0.5), "sigma")
    low, high = _whole(value.get("min", 1), "min"), _whole(value.get("max", 1_000_000), "max")
    if median <= 0:
        raise LengthError("lognormal", f"the median must be positive, got {median}")
    if not 0 <= sigma <= 5:
        raise LengthError("sigma", f"must be between 0 and 5, got {sigma}")
    if low > high:
        raise LengthError("min", f"above max: {low} > {high}")
    return Lognormal(median, sigma, low, high)


def _parse_mix(value: dict, recorded: Callable[[str], Recorded]) -> Lengths:
    rows = value["mix"]
    if not isinstance(rows, list) or not rows:
        raise LengthError("mix", "needs a list of tables, each with a share")
    shares, parts = [], []
    for i, row in enumerate(rows):
        if not isinstance(row, dict) or "share" not in row:
            raise LengthError(f"mix[{i}]", "needs a share")
        share = _number(row["share"], f"mix[{i}].share")
        if not 0 < share <= 1:
            raise LengthError(f"mix[{i}].share", f"must be in (0, 1], got {share}")
        try:
            parts.append(parse_lengths({k: v for k, v in row.items() if k != "share"}, recorded))
        except LengthError as e:
            raise LengthError(f"mix[{i}]{'.' + e.key if e.key else ''}", e.message) from None
        shares.append(share)
    if abs(sum(shares) - 1) > 1e-6:
        raise LengthError("mix", f"the shares sum to {sum(shares):g}, not 1")
    return Mix(tuple(shares), tuple(parts))


_PARSERS = {
    "fixed": _parse_fixed,
    "uniform": _parse_uniform,
    "pool_uniform": _parse_pool_uniform,
    "lognormal": _parse_lognormal,
}
_KINDS = (*_PARSERS, "mix", "trace")


def _pair(value: object, key: str) -> tuple[object, object]:
    if not isinstance(value, list) or len(value) != 2:
        raise LengthError(key, "needs a list of two numbers")
    return value[0], value[1]


def _number(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise LengthError(key, f"needs a number, got {value!r}")
    return float(value)


def _whole(value: object, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise LengthError(key, f"needs a whole number of tokens, got {value!r}")
    if not 1 <= value <= 10_000_000:
        raise LengthError(key, f"must be between 1 and 10,000,000 tokens, got {value}")
    return value
