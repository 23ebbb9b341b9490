"""`gpuwatch diagnose`: from whatever a user has to a verdict, through the same pipeline as the live agent.

Each SOURCE is recognised by what is in it (recognise.py) and becomes timed batches (Material); several sources are the
material of one incident. The batches are called on the one-second grid, and what the recording is too short for is
weighed by `gpuwatch.clues`. A capsule is executed again instead: it holds its calls. docs/diagnose.md is the manual.
"""

from __future__ import annotations

from .examine import Answer, diagnose, examine
from .material import Found, Material, MaterialError
from .prometheus import Asked, ask_prometheus
from .recordings import replay_capsule, transition_line
from .told import text

__all__ = [
    "Answer",
    "Asked",
    "Found",
    "Material",
    "MaterialError",
    "ask_prometheus",
    "diagnose",
    "examine",
    "replay_capsule",
    "text",
    "transition_line",
]
