"""The engine itself: from a request's arrival, step by step, to its last token."""
