"""The driver's library: loading, starting, asking, and what its answers mean. The bindings are nvidia-ml-py's.

Codes and names follow nvml.h. A function that this binding or driver does not have answers FUNCTION_NOT_FOUND, as the
binding itself does, so that old and new drivers are one case.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 1, 2, 3, 4, 6
DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 9, 10, 12, 13
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, GPU_NOT_FOUND, UNKNOWN = 15, 16, 18, 28, 999

SONAME = "libnvidia-ml.so.1"

REFUSALS = frozenset({NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, 22, 25, 26})
"""It will not say so later either: not supported, not allowed, not there, an ABI that is not ours, withdrawn."""
GONE = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
"""The device does not answer any more; others may."""
CLOSED = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH})
"""Nothing will answer until the library has been started again."""

_WORDS = {
    UNINITIALIZED: "not initialised", INVALID_ARGUMENT: "invalid argument", NOT_SUPPORTED: "not supported",
    NO_PERMISSION: "no permission", NOT_FOUND: "not found", DRIVER_NOT_LOADED: "the driver is not loaded",
    TIMEOUT: "timeout", LIBRARY_NOT_FOUND: f"{SONAME} is not there", FUNCTION_NOT_FOUND: "function not found",
    11: "interrupt problem", 14: "corrupted infoROM", GPU_IS_LOST: "the GPU is lost",
    RESET_REQUIRED: "the GPU must be reset", 17: "blocked by the operating system",
    VERSION_MISMATCH: "library and kernel driver differ: the driver was changed under this process, restart it",
    20: "out of memory", 21: "no data", 22: "not on a vGPU", 25: "another struct version", 26: "withdrawn",
    27: "not ready", GPU_NOT_FOUND: "the GPU is not there", UNKNOWN: "unknown error",
}  # fmt: skip


def said(code: int) -> str:
    """An error code in words."""
    return _WORDS.get(code, f"error {code}")


class NvmlError(Exception):
    """An answer that is an error: `call` is the function, `code` an nvmlReturn_t."""

    def __init__(self, call: str, code: int, detail: str = "") -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call}: {detail or said(code)}")


def is_there() -> bool:
    """Whether the library can be loaded here, which says nothing of the driver behind it."""
    binding = sys.modules.get("pynvml")
    if binding is not None and getattr(binding, "nvmlLib", None) is not None:
        return True
    try:
        ctypes.CDLL(SONAME)
    except OSError:
        return False
    return True


class Library:
    """Asks by a function's name. One instance a thread: `asking` is the call that it is in, for those who wait."""

    def __init__(self, binding: Any = None) -> None:
        self.binding = binding
        self.asking = ""
        self.calls = 0
        self._functions: dict[str, Callable[..., Any]] = {}
        self._error: type[BaseException] = getattr(binding, "NVMLError", ArithmeticError)

    def open(self) -> None:
        """Load and start the library. Raises NvmlError."""
        if self.binding is None:
            try:
                import pynvml
            except ImportError as error:
                raise NvmlError("pynvml", LIBRARY_NOT_FOUND, f"nvidia-ml-py is not installed ({error})") from None
            self.binding = pynvml
            self._error = pynvml.NVMLError
        self.ask("nvmlInit")

    def close(self) -> None:
        """Stop it. What it answers no longer matters."""
        try:
            self.ask("nvmlShutdown")
        except NvmlError:
            self.asking = ""

    def ask(self, name: str, *args: Any) -> Any:
        """Call a function of the binding. Raises NvmlError, and nothing else."""
        self.asking = name
        self.calls += 1
        function = self._functions.get(name) or self._find(name)
        try:
            return function(*args)
        except self._error as error:
            raise NvmlError(name, int(getattr(error, "value", UNKNOWN))) from None
        except Exception as error:  # a name that is not UTF-8, a binding that has changed: no answer, no crash
            raise NvmlError(name, UNKNOWN, f"{type(error).__name__}: {error}") from None

    def _find(self, name: str) -> Callable[..., Any]:
        function = getattr(self.binding, name, None)
        if not callable(function):
            raise NvmlError(name, FUNCTION_NOT_FOUND)
        self._functions[name] = function
        return function  # type: ignore[no-any-return]
