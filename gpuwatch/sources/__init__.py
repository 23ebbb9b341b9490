"""Sources turn the world into Batches: one file per kind of thing that can be looked at."""
