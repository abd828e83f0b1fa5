"""The demo's agent: 40 calls from synchronous and asyncio code, and some during which the servers are killed.

Owns the calls and the expectations. It is also an example of how the executors are used.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tarsy_tasks import AsyncToolExecutor, Outcome, ToolCall, ToolExecutor, ToolResult

__all__ = ["DemoCall", "Group", "run_async_calls", "run_disturbed_calls", "run_sync_calls"]


@dataclass(frozen=True)
class Group:
    """Calls of one kind.

    Attributes:
        kind: Their name in the table.
        expected: The outcome that each of them should have.
    """

    kind: str
    tool: str
    arguments: dict[str, object] | str
    expected: Outcome
    count: int


@dataclass(frozen=True)
class DemoCall:
    """One call of the demo and its answer."""

    mode: str
    group: Group
    result: ToolResult

    @property
    def as_expected(self) -> bool:
        return self.result.outcome is self.group.expected


GROUPS = (
    Group("fast", "echo", {"text": "hello"}, Outcome.OK, 5),
    Group("fast, JSON text", "quote", '{"item": "lamp", "count": 3}', Outcome.OK, 2),
    Group("slow", "wait", {"seconds": 1.5}, Outcome.OK, 1),
    Group("failing", "order", {"item": "unicorn", "count": 1}, Outcome.TOOL_ERROR, 1),
    Group("wrong arguments", "order", {"item": "lamp", "count": "many"}, Outcome.REJECTED, 1),
)
"""Ten calls, for each server and each of the two executors."""

DISTURBED = Group("while servers are killed", "wait", {"seconds": 2}, Outcome.OK, 6)


def run_sync_calls(servers: list[str]) -> list[DemoCall]:
    """Call as a synchronous agent does: all in parallel, answers in order."""
    planned = list(_plan(servers))
    with ToolExecutor(timeout_s=30, agent_id="demo", run_id="sync") as tools:
        results = tools.execute_many(call for _, call in planned)
    return [DemoCall("sync", group, result) for (group, _), result in zip(planned, results, strict=True)]


def run_async_calls(servers: list[str]) -> list[DemoCall]:
    """Call as an asyncio agent does."""

    async def run() -> list[DemoCall]:
        planned = list(_plan(servers))
        async with AsyncToolExecutor(timeout_s=30, agent_id="demo", run_id="async") as tools:
            results = await tools.execute_many(call for _, call in planned)
        return [DemoCall("asyncio", group, result) for (group, _), result in zip(planned, results, strict=True)]

    return asyncio.run(run())


def run_disturbed_calls(servers: list[str], disturb: Callable[[], None]) -> list[DemoCall]:
    """Submit calls, run `disturb` while they run, and wait for the answers."""
    planned = list(_plan(servers, [DISTURBED]))
    with ToolExecutor(timeout_s=30, agent_id="demo", run_id="faults") as tools:
        pending = [tools.submit(call) for _, call in planned]
        disturb()
        results = [each.result() for each in pending]
    return [DemoCall("sync", group, result) for (group, _), result in zip(planned, results, strict=True)]


def _plan(servers: list[str], groups: Iterable[Group] = GROUPS) -> Iterator[tuple[Group, ToolCall]]:
    for server in servers:
        for group in groups:
            for number in range(group.count):
                call = ToolCall(
                    id=f"{server}-{group.kind}-{number}", name=f"{server}.{group.tool}", arguments=group.arguments
                )
                yield group, call
