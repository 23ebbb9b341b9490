"""Calls of the pipeline written down and read back: the journal, the format and the capsule."""
