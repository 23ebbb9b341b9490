"""The pipeline's state as bytes and back, so that a capsule can begin in the middle.

A capsule may come from a stranger: only the classes and array types named here are ever made, and nothing is executed.
Plain values are msgpack; everything else is a tagged list.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np

FORMAT = 1
_DTYPES = frozenset({"<f8", "<u8", "|u1", "|b1", "<i8"})


class SnapshotError(ValueError):
    """The bytes are no snapshot of this version."""


def encode(value: Any, classes: dict[str, type]) -> bytes:
    """State → bytes. TypeError for a class that is not in `classes`."""
    names = {c: n for n, c in classes.items()}
    return msgspec.msgpack.encode({"snapshot": FORMAT, "state": _plain(value, names)})


def decode(data: bytes, classes: dict[str, type]) -> Any:
    """Bytes → state. SnapshotError for anything that `encode` does not write."""
    try:
        tree = msgspec.msgpack.decode(data)
        if not isinstance(tree, dict) or tree.get("snapshot") != FORMAT:
            raise SnapshotError("not a snapshot of format 1")
        return _whole(tree["state"], classes)
    except SnapshotError:
        raise
    except Exception as e:
        raise SnapshotError(f"damaged snapshot: {e}") from e


def _plain(v: Any, names: dict[type, str]) -> Any:
    if v is None or isinstance(v, bool | int | float | str | bytes):
        return v
    if isinstance(v, np.ndarray):
        return ["array", v.dtype.str, list(v.shape), np.ascontiguousarray(v).tobytes()]
    if isinstance(v, np.generic):
        return v.item()
    if isinstance(v, deque):
        return ["deque", v.maxlen, [_plain(x, names) for x in v]]
    if isinstance(v, tuple):
        return ["tuple", [_plain(x, names) for x in v]]
    if isinstance(v, list):
        return ["list", [_plain(x, names) for x in v]]
    if isinstance(v, dict):
        return ["dict", [[_plain(k, names), _plain(x, names)] for k, x in v.items()]]
    if type(v) not in names:
        raise TypeError(f"{type(v).__name__} is not part of a snapshot")
    fields = v.__struct_fields__ if isinstance(v, msgspec.Struct) else v.__dict__.keys()
    return ["object", names[type(v)], [[f, _plain(getattr(v, f), names)] for f in fields]]


def _whole(v: Any, classes: dict[str, type]) -> Any:
    if not isinstance(v, list):
        return v
    tag = v[0]
    if tag == "array":
        if v[1] not in _DTYPES:
            raise SnapshotError(f"array type {v[1]!r} is not allowed")
        return np.frombuffer(v[3], v[1]).reshape(v[2]).copy()
    if tag == "deque":
        return deque((_whole(x, classes) for x in v[2]), v[1])
    if tag == "tuple":
        return tuple(_whole(x, classes) for x in v[1])
    if tag == "list":
        return [_whole(x, classes) for x in v[1]]
    if tag == "dict":
        return {_whole(k, classes): _whole(x, classes) for k, x in v[1]}
    if tag != "object" or v[1] not in classes:
        raise SnapshotError(f"{v[1] if tag == 'object' else tag!r} is not part of a snapshot")
    cls = classes[v[1]]
    fields = {f: _whole(x, classes) for f, x in v[2]}
    if issubclass(cls, msgspec.Struct):
        return cls(**fields)
    made = cls.__new__(cls)
    made.__dict__.update(fields)
    return made
