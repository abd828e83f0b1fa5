"""The body of a call delivers an ending, whatever happens around it: a pool thread waits for that."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tarsy_tasks.interceptors import Requeued
from tarsy_tasks.worker.calls.execution import CallExecution, WorkerStopping


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("is_stopped_first", [True, False])
def test_an_ending_is_delivered_when_the_loop_stops(is_stopped_first: bool) -> None:
    """Redis does not answer, and the loop ends its tasks."""
    endings: list[Any] = []
    context = SimpleNamespace(
        metrics=SimpleNamespace(running=lambda *_: nullcontext()), in_flight=SimpleNamespace(unbegin=never)
    )
    call = SimpleNamespace(
        tool="look",
        server="desk",
        record=SimpleNamespace(is_listed=True, has_begun=True),
        may_have_run=False,
        delivery=SimpleNamespace(tag="a"),
        owner="w 1",
        is_closed=False,
    )
    interceptors: Any = SimpleNamespace(message=(), call=(), attempt=())
    operation: Any = SimpleNamespace(prepare=never)

    async def run() -> None:
        execution = CallExecution(context, interceptors, operation, call, endings.append)  # type: ignore[arg-type]
        execution.start()
        await asyncio.sleep(0)
        if is_stopped_first:
            execution.end(WorkerStopping())
            await asyncio.sleep(0)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(run())
    assert endings == [Requeued("the worker stops")]
