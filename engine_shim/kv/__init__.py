"""Book-keeping of the KV pool: which blocks are free, held, shared or promised."""
