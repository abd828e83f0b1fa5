"""Whether a delivered call may be sent: the memory that makes "at least once" safe.

Owns the decision for each delivery: answered or withdrawn meanwhile, begun by another worker, lost with its workers too
often. What the marker in Redis says is `deliveries`; which tools may be repeated is `invocation`. It runs in the pool
thread of its call.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

from celery.exceptions import Ignore
from redis.exceptions import RedisError

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.deliveries import MAX_DELIVERIES, CallState, Deliveries, Delivery
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.worker.calls.execution import TaskExecution
from tarsy_tasks.worker.calls.invocation import may_replay
from tarsy_tasks.worker.calls.quarantine import Quarantine
from tarsy_tasks.worker.reporting.audit_writer import audit

__all__ = ["Guard", "require_queue"]

_POLL_S = 1.0


def require_queue(request: Any, queue: str) -> None:
    """Who may write into a queue is decided in Redis: what it holds counts only for the server that it belongs to.

    Args:
        request: Celery's context of a task.
        queue: Where its message belongs. Queues of other names are the operator's own.

    Raises:
        CallError: It lay in the queue of another server, or among checks if it is none.
    """
    delivery: Delivery | None = getattr(request, "delivery", None)
    if delivery is None or delivery.queue == queue or keys.server_of_queue(delivery.queue) is None:
        return
    raise CallError(
        ErrorCode.WRONG_QUEUE,
        f"The message belongs in the queue `{queue}`, and lay in `{delivery.queue}`. The tool did not run. "
        "The program that sent it has to be mended (docs/protocol.md).",
    )


class Guard:
    """One delivery of one call.

    Args:
        job: The job that runs it.
        request: Celery's context of the task.

    Attributes:
        tag: The delivery's name in the books; empty if there is none.
        may_have_run: An earlier delivery began it, and nobody can say whether the tool ran.
    """

    def __init__(self, job: TaskExecution, request: Any) -> None:
        self._job = job
        # None for a task that is called directly, or came over another transport: then there is no memory.
        self._delivery: Delivery | None = getattr(request, "delivery", None)
        self._deliveries: Deliveries | None = getattr(request, "deliveries", None)
        self._owner = ""
        self.tag = "" if self._delivery is None else self._delivery.tag
        self.may_have_run = self._delivery is not None and self._delivery.state is CallState.BEGUN

    @contextmanager
    def admitted(self, deadline: float) -> Generator[None]:
        """Around all that is done for the call.

        A call whose workers died twice runs alone the third time: if it is what killed them, no other is blamed.

        Raises:
            Ignore: It was answered or withdrawn meanwhile.
            CallError: Its turn did not come before the deadline, monotonic time.
        """
        delivery, deliveries = self._delivery, self._deliveries
        if delivery is None or deliveries is None:
            yield
            return
        if delivery.state in (CallState.ANSWERED, CallState.WITHDRAWN):
            raise Ignore(delivery.state)
        quarantine, loop = self._job.context.quarantine, self._job.context.loop
        if delivery.count == 1:
            is_in = quarantine.join(self)
            try:
                if not is_in:
                    self._wait_for_suspect(quarantine, deliveries, deadline)
                yield
            finally:
                if not (is_in and quarantine.part(self)):
                    loop.submit(quarantine.leave(self))
            return
        is_alone = False
        try:
            is_alone = self._enter_as_suspect(quarantine, delivery, deliveries, deadline)
            yield
        finally:
            if is_alone:
                # Its answer is not stored yet, and the next suspect may be what kills.
                with suppress(RedisError):
                    deliveries.clear_isolated(delivery.tag)
            loop.submit(quarantine.leave(self))

    def _wait_for_suspect(self, quarantine: Quarantine, deliveries: Deliveries, deadline: float) -> None:
        try:
            suspect = self._job.run(quarantine.wait(self, max(0.001, deadline - time.monotonic())))
        except TimeoutError:
            raise CallError(
                ErrorCode.DEADLINE_PASSED,
                "The call had no time left when its turn came, after another one that workers were lost with. The tool "
                "did not run. Call again later, or allow more time.",
            ) from None
        if isinstance(suspect, Guard):
            with suppress(RedisError):
                deliveries.clear_isolated(suspect.tag)

    def _enter_as_suspect(
        self, quarantine: Quarantine, delivery: Delivery, deliveries: Deliveries, deadline: float
    ) -> bool:
        alone = delivery.count >= MAX_DELIVERIES
        try:
            is_alone = self._job.run(quarantine.enter(self, max(0.001, deadline - time.monotonic()), alone=alone))
        except TimeoutError:
            raise CallError(
                ErrorCode.DEADLINE_PASSED,
                "The call was lost with its worker before it began, and had no time left when its turn to run "
                "again came. The tool did not run. Call again later, or allow more time.",
            ) from None
        if is_alone:
            with suppress(RedisError):
                deliveries.mark_isolated(delivery.tag)
        return is_alone

    def begin(self, tool: ToolDefinition, server: ServerConfig, deadline: float) -> None:
        """Just before the call is sent: note that it begins.

        Raises:
            Ignore: It must not: it was answered or withdrawn meanwhile; or nobody can be asked in time, and it comes
                back later.
            CallError: Another worker began it and was lost, and it may not be repeated; or it has to be written to the
                audit, and cannot.
        """
        delivery, deliveries = self._delivery, self._deliveries
        if not audit.may_begin():
            raise _unaudited(f"`{tool.name}`")
        if delivery is None or deliveries is None:
            if audit.is_required:
                raise _unaudited(f"`{tool.name}`")
            return
        owner = self._owner = f"{self._job.context.instance} {delivery.count}"
        gone = ""
        # Longer than this no owner runs it: one that lives and has not answered by then never will.
        owner_ends_at = time.monotonic() + server.timeouts.call_timeout_s(tool.tool) + self._job.context.lease_s
        while True:
            try:
                trouble = deliveries.begin(delivery, owner, after=gone, is_audited=audit.is_stream_required)
                if trouble:
                    audit.note_refusal(trouble)
                    raise _unaudited(f"`{tool.name}`")
                if delivery.state is CallState.NONE:
                    return
                if delivery.state is not CallState.BEGUN:
                    raise Ignore(delivery.state)
                self.may_have_run = True
                first = delivery.owner.rpartition(" ")[0]
                if not fleet.is_alive(deliveries.exchange, first, self._job.context.lease_s):
                    if not may_replay(tool, server):
                        raise _lost(f"`{tool.name}`")
                    gone = delivery.owner
                    continue
            except (RedisError, OSError):
                if time.monotonic() >= deadline:
                    delivery.kept = True
                    raise Ignore("Redis is away") from None
            # Its owner lives, and was only cut off for a while: it will answer. Or Redis will.
            if delivery.state is CallState.BEGUN and time.monotonic() >= min(deadline, owner_ends_at):
                raise _lost(f"`{tool.name}`")
            self._job.run(asyncio.sleep(_POLL_S))

    def unbegin(self) -> None:
        """The call goes back to its queue, and was not sent."""
        if self._delivery is not None and self._deliveries is not None and self._owner:
            with suppress(RedisError):
                self._deliveries.unbegin(self._delivery.tag, self._owner)

    def truthful(self, error: CallError, name: str) -> CallError:
        """What to answer to a call that ended so: never that it did not run, if an earlier delivery began it."""
        if self.may_have_run and error.outcome in (Outcome.UNAVAILABLE, Outcome.REJECTED, Outcome.CANCELLED):
            return _lost(f"`{name}`")
        return error


def _unaudited(what: str) -> CallError:
    return CallError(
        ErrorCode.AUDIT_UNAVAILABLE,
        f"{what} did not run: every call has to be written to the audit here, and the audit takes no entries now. "
        "An operator has to look; try again later.",
    )


def _lost(what: str) -> CallError:
    return CallError(
        ErrorCode.WORKER_LOST,
        f"The worker that ran {what} was lost, and it was not run again, because that may not be safe. It may have "
        "run. Look at its effects before you call it again.",
    )
