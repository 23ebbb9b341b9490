"""How linear layers hold their weights, one short file for each kernel path; layers.py chooses, stored.py counts bytes."""
