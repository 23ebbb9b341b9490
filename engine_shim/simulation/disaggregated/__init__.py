"""Prefill and decode on separate devices: no prompt stalls anybody's tokens, and every prompt's KV must be moved.

A request takes the way that it takes through real deployments, as two requests that a router sends one after another:

1. the *prefill engine* computes the prompt and keeps its KV (prefill_side.py);
2. the *decode engine* queues it until it has blocks for the whole prompt: the wait for pre-allocation (decode_side.py);
3. its KV comes over the decode engine's link, one transfer after the other at a finite bandwidth (link.py): stage
   `transfer`. Then the prefill engine's blocks are free;
4. the decode engine computes the prompt's last token once more, which yields the first token of the output, and decodes.

So a slow network shows in the transfer stage and its measured speed, a full decode pool in the decode engine's queue,
and both fill the prefill engine's pool with KV that nobody has fetched, until it admits nobody.

Virtual time and modelled devices only: fleet.py plays, simulation.py writes the world stream, in which each engine is a
subject of its own.
"""
