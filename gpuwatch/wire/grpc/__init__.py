"""gRPC over HTTP/2, as much of it as OTLP needs: one unary method, served and called, messages passed on as they came.

Written on h2 alone, loaded on demand: a message of a bounded size, compressed or not, is all that is exchanged. Generic
libraries refuse compressed messages, have no bound, or cost the agent a quarter of its memory.
"""

EXPORT_TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
"""The one method."""
