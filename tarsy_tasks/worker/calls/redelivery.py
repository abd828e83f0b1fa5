"""Whether a delivered call may be sent: the memory that makes "at least once" safe.

Owns the decision for each delivery: answered or withdrawn elsewhere, begun by another worker, lost with its workers too
often. What the begin marker in Redis says is `broker.deliveries`; which tools may be repeated is `invocation`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from redis.exceptions import RedisError, ResponseError

from tarsy_tasks.broker.deliveries import QUARANTINE_FROM_DELIVERY
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.limit_counters import OverLimit
from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import Dropped, Ending, Proceed, Requeued, Stage
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.over_limit import CallLimits, wait_for_server
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.reporting.call_record import CallRecord

__all__ = ["BeginMarker", "Redelivery", "never_deny_run"]

_POLL_S = 1.0


class Redelivery:
    """Drops a call that was answered or withdrawn elsewhere. `Quarantine` decides when a call whose workers were lost
    may run, and which calls run beside it.
    """

    name = "redelivery"
    stage: Stage = "message"

    def __init__(self, context: WorkerContext) -> None:
        self._in_flight = context.in_flight
        self._quarantine = context.quarantine

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        delivery = call.delivery
        if delivery is None:
            return await proceed()
        if delivery.state in (CallState.ANSWERED, CallState.WITHDRAWN):
            return Dropped(delivery.state)
        if delivery.count > 1:
            async with self._after_loss(call, delivery):
                return await proceed()
        is_in = self._quarantine.admit_new(call)
        try:
            if not is_in:
                await self._wait_for_quarantined(call)
            return await proceed()
        finally:
            if not (is_in and self._quarantine.remove_new(call)):
                await self._quarantine.remove(call)

    async def _wait_for_quarantined(self, call: RunningCall) -> None:
        try:
            quarantined = await self._quarantine.admit_after_quarantined(call, _seconds_left(call))
        except TimeoutError:
            raise CallError(
                ErrorCode.DEADLINE_PASSED,
                "The call waited until its deadline for another call, which is quarantined because its workers were "
                "lost. The tool did not run. Call it again later, or allow more time.",
            ) from None
        if isinstance(quarantined, RunningCall):
            with suppress(RedisError, OSError):
                await self._in_flight.clear_quarantined(quarantined.id)

    @asynccontextmanager
    async def _after_loss(self, call: RunningCall, delivery: Delivery) -> AsyncGenerator[None]:
        """Admits a call that was lost with its worker. On its second delivery it runs beside others; from the third on
        it is quarantined: if it is what kills the workers, no other call is blamed.
        """
        is_alone = False
        try:
            is_alone = await self._admit_lost(call, alone=delivery.count >= QUARANTINE_FROM_DELIVERY)
            if is_alone:
                with suppress(RedisError, OSError):
                    await self._in_flight.mark_quarantined(delivery.tag)
            yield
        finally:
            if is_alone:
                # Its answer is not stored yet, and the next quarantined call may be the one that kills.
                with suppress(RedisError, OSError):
                    await self._in_flight.clear_quarantined(delivery.tag)
            await self._quarantine.remove(call)

    async def _admit_lost(self, call: RunningCall, *, alone: bool) -> bool:
        try:
            return await self._quarantine.admit_lost(call, _seconds_left(call), alone=alone)
        except TimeoutError:
            raise CallError(
                ErrorCode.DEADLINE_PASSED,
                "The worker was lost before the call began, and no other worker could run it before its deadline. The "
                "tool did not run. Call it again later, or allow more time.",
            ) from None


class BeginMarker:
    """Writes, right before a call is sent, that it begins: a lost worker's call "may have run" only from then on. The
    same step counts it for its limits.

    A call that another worker has begun is not sent as long as that worker lives, whose answer is awaited. If it is
    lost, the call is sent only if it may be repeated; else its answer is `WORKER_LOST`.
    """

    name = "begin_marker"
    stage: Stage = "attempt"

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        limits = context.policy.limits if context.policy is not None else None
        self._limits = CallLimits(limits, context.lease_s) if limits is not None else None

    async def __call__(self, call: RunningCall, proceed: Proceed) -> Ending:
        if not call.record.has_begun:
            if ending := await self._begin(call):
                return ending
            call.record.has_begun = True
        return await proceed()

    async def _begin(self, call: RunningCall) -> Dropped | Requeued | None:
        """Why it must not be sent: it was answered or withdrawn elsewhere, or has to wait.

        Raises:
            CallError: Another worker began it and was lost, and it may not be repeated; it has to be written to the
                audit, and cannot be; or it is over a limit.
        """
        audit, delivery = self._context.audit, call.delivery
        if delivery is not None and (left_s := call.connection.paused_until - time.monotonic()) > 0:
            return wait_for_server(call, left_s)
        if not audit.may_begin() or (delivery is None and audit.is_required):
            raise _unaudited(call)
        if delivery is None:
            return None
        in_flight, lease_s, limits = self._context.in_flight, self._context.lease_s, self._limits
        applied = limits.find(call) if limits is not None else None
        owner = call.owner = f"{self._context.instance} {delivery.number}"
        gone = ""
        # No owner runs it longer than this: one that is alive and has not answered by then never will.
        timeouts = call.connection.server.timeouts
        longest_s = timeouts.call_timeout_s(call.tool)
        if timeouts.progress_extends:
            longest_s = max(longest_s, timeouts.progress_limit_s)
        owner_ends_at = time.monotonic() + longest_s + lease_s
        while True:
            try:
                at = audit.time_of(time.monotonic())
                is_audited = audit.is_stream_required
                if limits is None or applied is None:
                    trouble = await in_flight.begin(delivery, owner, at, after=gone, is_audited=is_audited)
                else:
                    check = limits.build_check(call, applied)
                    trouble = await in_flight.begin_limited(
                        delivery, owner, at, check, after=gone, is_audited=is_audited
                    )
                    if isinstance(trouble, OverLimit):
                        return limits.end(call, applied, trouble)
                if trouble:
                    audit.note_refusal(trouble)
                    raise _unaudited(call)
                if delivery.state is CallState.NONE:
                    delivery.charges = applied.charges if applied is not None else ""
                    return None
                if delivery.state is not CallState.BEGUN:
                    return Dropped(delivery.state)
                call.may_have_run = True
                first = delivery.owner.rpartition(" ")[0]
                if not await in_flight.is_alive(first, lease_s):
                    if not call.may_replay:
                        raise _lost(call.record)
                    gone = delivery.owner
                    continue
            except (RedisError, OSError) as error:
                if (
                    limits is not None
                    and applied is not None
                    and isinstance(error, ResponseError)
                    and classify_error(error) is not ErrorKind.PASSING
                ):
                    raise limits.refuse(call, error) from error
                # Otherwise the timer of the call ends this.
            # Its owner is alive, and was only cut off for a while: it will answer. Or Redis will.
            if delivery.state is CallState.BEGUN and time.monotonic() >= min(call.deadline, owner_ends_at):
                raise _lost(call.record, "did not answer in time")
            await asyncio.sleep(_POLL_S)


def never_deny_run(error: CallError, record: CallRecord, *, may_have_run: bool) -> CallError:
    """The error to answer with: never one that says that the tool did not run, if an earlier delivery was sent."""
    if may_have_run and error.outcome in (Outcome.UNAVAILABLE, Outcome.REJECTED, Outcome.CANCELLED):
        return _lost(record)
    return error


def _seconds_left(call: RunningCall) -> float:
    return max(0.001, call.deadline - time.monotonic())


def _unaudited(call: RunningCall) -> CallError:
    return CallError(
        ErrorCode.AUDIT_UNAVAILABLE,
        f"{call.record.title} did not run: this deployment requires an audit entry for every call, and the audit "
        "cannot be written. Tell the user that an operator must fix this; call it again later.",
    )


def _lost(record: CallRecord, what: str = "was lost") -> CallError:
    return CallError(
        ErrorCode.WORKER_LOST,
        f"The worker that ran {record.title} {what}, and the call was not repeated, because that may not be safe. "
        "The tool may have run. Check its effects before you call it again.",
    )
