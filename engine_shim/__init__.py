"""The bundled inference engine: small, real and instrumented, so that every incident can be produced and explained.

It never imports gpuwatch. The two meet on HTTP, OTLP, the step ring (docs/ring.md) and captures (docs/capture.md).
"""

__version__ = "0.1.0"
