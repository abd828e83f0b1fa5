"""The body of a call reports an ending, whatever happens around it: a pool thread waits for that."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from tarsy_tasks import ErrorCode
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.config.servers import Timeouts
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import ANONYMOUS, Requeued
from tarsy_tasks.models import CallInfo
from tarsy_tasks.worker.calls.admission import Deadline
from tarsy_tasks.worker.calls.execution import CallExecution, WorkerStopping
from tarsy_tasks.worker.calls.redelivery import BeginMarker
from tarsy_tasks.worker.maskers import build_masker
from tests.processes import until


async def never(*_: Any) -> None:
    await asyncio.Event().wait()


def parts(unbegin: Any, *interceptors: Any) -> tuple[Any, Any, Any, Any]:
    """What an execution is made of, for a call that has begun and was not sent."""
    context = SimpleNamespace(
        metrics=SimpleNamespace(running=lambda *_: nullcontext()),
        in_flight=SimpleNamespace(unbegin=unbegin),
        elicitation=None,
    )
    call = SimpleNamespace(
        connection=SimpleNamespace(agents=None),
        tool="look",
        task="",
        server="desk",
        record=SimpleNamespace(operation="tool_call", is_listed=True, has_begun=True),
        may_have_run=False,
        delivery=Delivery("a", "mcp.desk"),
        owner="w 1",
        is_closed=False,
        feed=None,
        deadline=0.0,
    )
    steps = SimpleNamespace(message=interceptors, call=(), attempt=())
    return context, steps, SimpleNamespace(prepare=never), call


@pytest.mark.parametrize("is_stopped_first", [True, False])
def test_an_ending_is_reported_when_the_loop_stops(is_stopped_first: bool) -> None:
    """Redis does not answer, and the loop ends its tasks."""
    endings: list[Any] = []
    *others, call = parts(unbegin=never)

    async def run() -> None:
        execution = CallExecution(*others, call, endings.append)
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
    assert call.delivery.unbegins, "the step that gives it back can be sent when Redis is back"


@pytest.mark.parametrize("is_redis_away", [False, True])
def test_a_call_that_an_interceptor_requeues_has_not_begun(is_redis_away: bool) -> None:
    """Otherwise its next worker would wait for the answer of this one."""
    endings: list[Any] = []
    begun = {"a": "w 1"}

    async def unbegin(tag: str, owner: str) -> None:
        if is_redis_away:
            raise RedisConnectionError("Redis is away")
        assert begun.pop(tag) == owner

    async def requeue(*_: Any) -> Requeued:
        return Requeued("later")

    *others, call = parts(unbegin, requeue)

    async def run() -> None:
        execution = CallExecution(*others, call, endings.append)
        execution.start()
        await until(lambda: endings, 10)

    asyncio.run(run())
    assert endings == [Requeued("later")]
    assert bool(begun) is is_redis_away
    assert call.delivery.unbegins, "the step that gives it back does the same"


def test_an_owner_that_lives_and_is_silent_is_not_called_lost() -> None:
    async def begin(delivery: Any, *_: Any, **__: Any) -> str:
        delivery.state, delivery.owner = CallState.BEGUN, "other 1"
        return ""

    async def is_alive(*_: Any) -> bool:
        return True

    context, _, _, call = parts(never)
    context.audit = SimpleNamespace(
        may_begin=lambda: True, is_required=False, is_stream_required=False, time_of=lambda _: 0.0
    )
    context.in_flight = SimpleNamespace(begin=begin, is_alive=is_alive)
    context.instance, context.lease_s, context.policy = "w", 20.0, None
    call.record.has_begun, call.record.title = False, "`desk.order`"
    call.delivery.count, call.delivery.given_back, call.deadline = 2, 1, 0.0
    call.connection = SimpleNamespace(paused_until=0.0, server=SimpleNamespace(timeouts=Timeouts()))
    with pytest.raises(CallError, match="did not answer in time, and the call was not repeated") as raised:
        asyncio.run(BeginMarker(context)(call, never))
    assert raised.value.code is ErrorCode.WORKER_LOST
    assert "was lost" not in raised.value.text
    assert call.owner == "w 2.1", "each delivery begins a call as another owner"


def test_a_call_that_cannot_begin_ends_at_its_deadline() -> None:
    endings: list[Any] = []

    async def refuse(*_: Any, **__: Any) -> None:
        raise RedisError("it is away")

    context, steps, operation, call = parts(never)
    context.audit = SimpleNamespace(
        may_begin=lambda: True, is_required=False, is_stream_required=False, time_of=lambda _: 0.0
    )
    context.audit.mask_name = lambda name, server: name
    context.in_flight.begin = refuse
    context.instance, context.lease_s, context.policy = "w", 20.0, None
    call.record.has_begun = False
    call.record.title, call.record.server, call.record.tool = "`desk.look`", "desk", "look"
    call.record.principal, call.record.priority = ANONYMOUS, "normal"
    call.record.picked_up_at, call.record.attempts, call.record.is_served = None, 0, True
    call.delivery.count, call.delivery.state = 1, CallState.NONE
    call.info, call.repairs, call.attempts = CallInfo(timeout_s=0.7), (), 0
    server = SimpleNamespace(timeouts=Timeouts())
    call.connection = SimpleNamespace(paused_until=0.0, server=server, masker=build_masker())
    steps.message = (Deadline(context), BeginMarker(context))

    async def run() -> None:
        CallExecution(context, steps, operation, call, endings.append).start()
        await until(lambda: endings, 10)

    asyncio.run(run())
    assert [each.result.error_code for each in endings] == [ErrorCode.DEADLINE_PASSED]
