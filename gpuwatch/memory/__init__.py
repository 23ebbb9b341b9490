"""What is remembered of the batches, and the one box that is asked about it: view.py."""
