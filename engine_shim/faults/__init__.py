"""What can break: mechanisms, one short file each. They act on what the engine does and never touch a metric.

kinds.py lists them all, table.py reads them, run.py is what a run asks. Slowdowns and outages are the plain ones; others
change the device's condition, a request's way in, the pool, the queue, or what clients and watchers get to see.
"""

from __future__ import annotations

from .interval import FOREVER
from .kinds import KINDS
from .outage import Outage
from .run import Faults
from .slowdown import HUNG_COLLECTIVE, SLOW_TRANSFER, Slowdown
from .table import Fault, fault_from_table

__all__ = [
    "FOREVER",
    "HUNG_COLLECTIVE",
    "KINDS",
    "SLOW_TRANSFER",
    "Fault",
    "Faults",
    "Outage",
    "Slowdown",
    "fault_from_table",
]
