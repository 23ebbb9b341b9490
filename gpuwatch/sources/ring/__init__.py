"""The step ring: what an engine writes into shared memory after every step."""
