"""The priorities that a call can have, for agents, workers and the command line."""

from typing import Literal, get_args

__all__ = ["NORMAL", "PRIORITIES", "Priority"]

Priority = Literal["interactive", "normal", "batch"]
"""How urgent a call is among those of the same agent to the same server."""
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""The most urgent first."""
NORMAL: Priority = "normal"
