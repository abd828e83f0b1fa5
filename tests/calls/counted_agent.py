"""An agent that makes one call for each line that it reads, and counts what Python does for it."""

import asyncio
import sys

import tests.calls.counting  # noqa: F401 - before the threads of the executor start
from tarsy_tasks import AsyncToolExecutor, Outcome, ToolExecutor, ToolResult

CALL = ("desk.echo", {"text": "hello, this is the text of a tool call"})


def report(result: ToolResult) -> None:
    assert result.outcome is Outcome.OK, result
    sys.stdout.buffer.write(b"answered\n")
    sys.stdout.buffer.flush()


def run() -> None:
    with ToolExecutor(timeout_s=30) as tools:
        for _ in sys.stdin.buffer:
            report(tools.execute(*CALL))


async def run_async() -> None:
    async with AsyncToolExecutor(timeout_s=30) as tools:
        for _ in sys.stdin.buffer:
            report(await tools.execute(*CALL))


if sys.argv[1] == "async agent":
    asyncio.run(run_async())
else:
    run()
