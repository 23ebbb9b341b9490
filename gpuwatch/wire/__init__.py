"""Formats without meaning: the exposition text, OTLP, gRPC and one bounded HTTP get."""
