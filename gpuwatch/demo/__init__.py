"""`gpuwatch demo`: engine, load, agent, verdict and postmortem in one command, on a modelled device or for real."""

from .problem import DemoError
from .run import run_demo

__all__ = ["DemoError", "run_demo"]
