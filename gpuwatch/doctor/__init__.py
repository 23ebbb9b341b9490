"""`gpuwatch doctor`: what of everything that is configured can be seen, and the one change that would show the rest.

`checkup` looks and reports. A file for each room: what answers at an engine's address (`engine_page`), device pages and the
map of devices (`devices`), drivers (`drivers`), processes and containers (`machine`), rules that only need more time
(`outlook`).
"""
