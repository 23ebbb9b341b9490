"""The step ring of gpuwatch, written from inside vLLM. Needs nothing but the standard library and, in `plugin`, vLLM."""
