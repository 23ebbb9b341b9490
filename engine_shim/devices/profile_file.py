"""Device profiles as TOML files: what `calibrate` writes, and what `--device FILE` reads.

A file has the fields of devices.Device under [device], in base units, and may say under [fit] how they came about; that
part is for people. `like = "h100"` takes what is not given from a built-in profile. Errors are ValueErrors that name
the file and the key.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from .profiles import DEVICES, Device

_TEXTS = ("name", "product")
_MAY_BE_ZERO = {
    "idle_power_watts", "launch_s", "per_sequence_s", *(field.name for field in fields(Device) if field.default == 0),
}  # fmt: skip

_MAY_BE_NAN = ("power_limit_watts", "idle_power_watts")  # what is not known is not drawn


def device_named(name: str) -> Device:
    """The profile of that name, or of that file if it ends in .toml; ValueError lists the known ones."""
    if name.endswith(".toml"):
        return read_device(Path(name))
    if name not in DEVICES:
        raise ValueError(f"device {name!r} is not known; use one of {', '.join(DEVICES)}, or a profile (*.toml)")
    return DEVICES[name]


def read_device(path: Path) -> Device:
    """The profile in the file."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path}: no such device profile") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path}: {error}") from None
    given = table.get("device")
    if not isinstance(given, dict):
        raise ValueError(f"{path}: needs a table [device]")
    return _device(path, given)


def _device(path: Path, given: Mapping[str, Any]) -> Device:
    values: dict[str, Any] = {}
    if "like" in given:
        if given["like"] not in DEVICES:
            raise ValueError(f"{path}: device.like must be one of {', '.join(DEVICES)}, not {given['like']!r}")
        values = asdict(DEVICES[given["like"]])
    known = {field.name: field for field in fields(Device)}
    for key, value in given.items():
        if key == "like":
            continue
        if key not in known:
            raise ValueError(f"{path}: device.{key} is not a known key; known: {', '.join(known)}")
        values[key] = _checked(path, key, value)
    missing = [name for name, field in known.items() if name not in values and field.default is MISSING]
    if missing:
        raise ValueError(f"{path}: device.{missing[0]} is missing")
    return Device(**values)


def _checked(path: Path, key: str, value: object) -> object:
    if key in _TEXTS:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{path}: device.{key} needs a text, not {value!r}")
        return value
    unknown = key in _MAY_BE_NAN and isinstance(value, float) and math.isnan(value)
    if unknown:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{path}: device.{key} needs a number, not {value!r}")
    if value < 0 or (value == 0 and key not in _MAY_BE_ZERO):
        raise ValueError(f"{path}: device.{key} must be above 0, not {value}")
    return int(value) if key == "sm_count" else float(value)


def device_text(device: Device, fit: Mapping[str, str | int | float]) -> str:
    """The file's text, with remarks on the fit."""
    values = asdict(device)
    lines = ["# A device profile for the modelled runner: `--device FILE`.", "[device]"]
    lines += [f"{key} = {_toml(value)}" for key, value in values.items()]
    lines += ["", "[fit]", *(f"{key} = {_toml(value)}" for key, value in fit.items())]
    return "\n".join(lines) + "\n"


def _toml(value: str | float) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'
    return repr(value) if isinstance(value, int) else f"{value:.6g}"
