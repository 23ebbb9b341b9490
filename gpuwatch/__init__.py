"""gpuwatch says why an LLM inference service is slow: the incident, its evidence, advice and a postmortem."""

__version__ = "0.1.0"
