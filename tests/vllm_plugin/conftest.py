"""The plugin as vLLM loads it, with the one class of vLLM that it derives from; the real vLLM is in test_real_vllm.py."""

import abc
import importlib
import logging
import sys
from types import ModuleType

import pytest

from gpuwatch.sources.ring.ring_file import RingFile


class StatLoggerBase(abc.ABC):
    """The contract as vLLM 0.32 writes it down."""

    @abc.abstractmethod
    def __init__(self, vllm_config, engine_index=0): ...

    @abc.abstractmethod
    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...

    @abc.abstractmethod
    def log_engine_initialized(self): ...

    def log(self):  # noqa: B027  (as vLLM has it)
        pass

    def record_sleep_state(self, is_awake, level):  # noqa: B027
        pass


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """The plugin's module, writing under tmp_path."""
    loggers = ModuleType("vllm.v1.metrics.loggers")
    loggers.StatLoggerBase = StatLoggerBase
    vllm = ModuleType("vllm")
    vllm.__version__ = "0.32.0+cpu"
    for name, module in {
        "vllm": vllm, "vllm.v1": ModuleType("vllm.v1"), "vllm.v1.metrics": ModuleType("vllm.v1.metrics"),
        "vllm.v1.metrics.loggers": loggers,
    }.items():  # fmt: skip
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gpuwatch_vllm.plugin", raising=False)
    monkeypatch.setenv("GPUWATCH_RING_DIR", str(tmp_path))
    for name in ("GPUWATCH_ENGINE", "GPUWATCH_RING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "MODEL", "--port", "8123"])
    yield importlib.import_module("gpuwatch_vllm.plugin")
    sys.modules.pop("gpuwatch_vllm.plugin", None)


@pytest.fixture
def told(caplog):
    """What was logged at the level of a warning."""
    caplog.set_level(logging.INFO)
    return lambda: [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.fixture
def ring(tmp_path):
    """The ring file that was written."""
    opened = []

    def read(name="vllm-0.ring"):
        opened.append(RingFile(str(tmp_path / name)))
        return opened[-1]

    yield read
    for file in opened:
        file.close()
