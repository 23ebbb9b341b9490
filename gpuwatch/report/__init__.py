"""The postmortem: a capsule becomes one self-contained page, and the same in Markdown."""
