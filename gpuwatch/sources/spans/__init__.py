"""Spans of requests: decoded, cut into stages, put together into trees, and kept until they are asked for."""
