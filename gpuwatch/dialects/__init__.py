"""Dialects: which names each engine uses for the catalogue's signals. Data only."""
