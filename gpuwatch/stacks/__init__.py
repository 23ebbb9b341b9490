"""Python stacks of an engine's processes, through the program py-spy: where threads stand, never what they hold.

`look` takes three dumps and keeps what did not move; `record` samples for some seconds into a speedscope file;
`StackTaker` does the former once for each incident, where that is allowed. Locals are never asked for: prompts live there.
"""

from .dump import Frame, StackLook, Thread, look
from .record import record
from .taker import StackTaker

__all__ = ["Frame", "StackLook", "StackTaker", "Thread", "look", "record"]
