"""A healthy server on the same worker as a misbehaving one, and the proof that its calls go on meanwhile."""

import statistics
import time

from tarsy_tasks import Outcome, PendingCall, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.errors import ResultTimeout
from tests.processes import DEMO_SERVER

__all__ = ["BAD_TIMEOUTS", "HEALTHY", "call_beside_neighbour", "call_neighbour", "wait_beside_neighbour"]

HEALTHY = {"neighbour": DEMO_SERVER}
BAD_TIMEOUTS = {"connect_s": 3, "call_s": 3, "list_s": 3, "recreate_s": 1}
_ANSWER_S = 12.0
"""A call that times out ends within its 3 s, one that is answered at once; the rest is for a busy machine."""
_STALL_S = 2.5
_MEDIAN_S = 1.0
"""A call of the neighbour takes milliseconds; only a worker that is blocked needs this long, even on a busy machine."""


def call_neighbour(tools: ToolExecutor, within_s: float = _STALL_S) -> float:
    """One call of the healthy server, which must be answered at once; returns the seconds that it took."""
    started = time.monotonic()
    result = tools.execute(ToolCall(id="n", name="neighbour.echo", arguments={"text": "still here"}))
    took_s = time.monotonic() - started
    assert (result.outcome, result.content) == (Outcome.OK, "still here")
    assert took_s < within_s, f"the neighbour's call took {took_s:.1f} s"
    return took_s


def call_beside_neighbour(tools: ToolExecutor, call: ToolCall, within_s: float = _ANSWER_S) -> ToolResult:
    """The answer to a call that must end in time, with the neighbour's calls answered before, meanwhile and after."""
    started = time.monotonic()
    result = wait_beside_neighbour(tools, tools.submit(call), within_s)
    took_s = time.monotonic() - started
    assert took_s < within_s, f"{call.name} took {took_s:.1f} s: {result.content}"
    return result


def wait_beside_neighbour(tools: ToolExecutor, pending: PendingCall, within_s: float = _ANSWER_S) -> ToolResult:
    """The answer to a call that was sent before; its worker must have ended it in time."""
    neighbour_s: list[float] = []
    while True:
        neighbour_s.append(call_neighbour(tools))
        try:
            result = pending.result(timeout_s=0.1)
            break
        except ResultTimeout:
            continue
    neighbour_s += [call_neighbour(tools), call_neighbour(tools)]
    assert statistics.median(neighbour_s) < _MEDIAN_S, f"the neighbour's calls took {neighbour_s}"
    assert result.duration_s < within_s, f"{result.name} took {result.duration_s:.1f} s: {result.content}"
    return result
