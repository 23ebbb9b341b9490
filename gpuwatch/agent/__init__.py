"""The running agent: put together from its configuration, and its loop."""
