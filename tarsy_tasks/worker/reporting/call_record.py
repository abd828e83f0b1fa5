"""One call in the hands of this worker, as the audit will tell of it.

Owns what is noted of it on its way, and the entry that comes of that when it ends, however it ends: answered, failed,
revoked, withdrawn, refused or set aside. Where entries go, `audit` says.
"""

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import states

from tarsy_tasks.broker.deliveries import Entry
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.broker.task_failures import build_task_failure
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.audit import LATEST_S, AuditEntry, Step, StepName, build_canonical, build_digest
from tarsy_tasks.telemetry.shown_arguments import build_shown

if TYPE_CHECKING:
    from tarsy_tasks.worker.calls.invocation import Invocation
    from tarsy_tasks.worker.reporting.audit_writer import Audit

__all__ = ["CallRecord"]

logger = logging.getLogger(__name__)

_ERROR_CHARS = 500
_MASKED_CHARS = 16 * 1024
"""Cut only after masking: half a secret would not be known for one."""
_NAME_CHARS = 200


class CallRecord:
    """What is known of one call.

    Args:
        audit: Where its entry goes.
        task_id: Celery's id of the task.
        message: What the message says of the call; any producer may have written it.
        server: Id of the server, if the message does not say it.

    Attributes:
        picked_up_at: When a pool thread took it up, monotonic time; None before.
        tool: Name of the tool, in the end as the server lists it.
        arguments: As they came, in the end as they are sent to the MCP server.
        invocation: What sends it, once it may be sent.
        result: Its answer.
        failure: Why it has none.
    """

    def __init__(self, audit: "Audit", task_id: str, message: CallMessage, server: str = "") -> None:
        self._audit = audit
        self._task_id = task_id
        self._info = message.info
        self._server = message.server or server
        self.picked_up_at: float | None = None
        self.tool = message.tool
        self.arguments: Any = message.arguments
        self.invocation: Invocation | None = None
        self.result: ToolResult | None = None
        self.failure: CallError | None = None

    def entry(self, status: str | None = None, result: Any = None, size_bytes: int | None = None) -> Entry:
        """As `Trail.entry`. It does not fail: the answer goes with it."""
        now = time.monotonic()
        try:
            return self._audit.build_entry(self._build(self._ending(status, result), size_bytes, now))
        except Exception:
            logger.exception("the entry of the task %r is incomplete", self._task_id)
            at, task_id = (
                self._audit.time_of(now),
                self._audit.mask_name(self._task_id, server=self._server)[:_NAME_CHARS],
            )
            entry = AuditEntry(at=at, task_id=task_id, outcome=Outcome.UNKNOWN, worker=self._audit.worker)
            return self._audit.build_entry(entry)

    def fail(self, error: BaseException) -> None:
        """Its task failed, and stores that or not."""
        encoded = {"exc_type": type(error).__name__}
        self.failure = build_task_failure(self._task_id, states.FAILURE, encoded, self.what)

    @property
    def what(self) -> str:
        """What was called, in words."""
        return f"`{self._server}.{self.tool}`"

    def _ending(self, status: str | None, result: Any) -> ToolResult:
        """What the agent is told."""
        if status == states.SUCCESS and isinstance(result, ToolResult):
            return result
        if status is None and self.result is not None:
            return self.result
        if status is None and self.failure is not None:
            failure = self.failure
        elif status is None and self.invocation is None:
            failure = self._withdrawn()
        else:
            failure = build_task_failure(self._task_id, status or states.REVOKED, result, self.what)
        return ToolResult.from_error(failure, call_id="", name="")

    def _withdrawn(self) -> CallError:
        deadline = self._number("deadline")
        if deadline is not None and self._audit.time_of(time.monotonic()) > deadline:
            text = f"{self.what} was not started before its deadline, and its caller took it back."
            return CallError(ErrorCode.NOT_STARTED, f"{text} The tool did not run.")
        return CallError(
            ErrorCode.CANCELLED, f"{self.what} was taken back by its caller before it began. The tool did not run."
        )

    def _build(self, ending: ToolResult, size_bytes: int | None, now: float) -> AuditEntry:
        mask_name = partial(self._audit.mask_name, server=self._server)
        mask = partial(self._audit.mask, server=self._server)
        canonical = build_canonical(self.arguments)
        is_ok = ending.outcome is Outcome.OK
        duration_s = now - self.picked_up_at if self.picked_up_at is not None else 0.0
        return AuditEntry(
            at=self._audit.time_of(now),
            call_id=self._name("call_id") or "",
            task_id=mask_name(self._task_id)[:_NAME_CHARS],
            agent_id=self._name("agent_id"),
            run_id=self._name("run_id"),
            server=mask_name(self._server)[:_NAME_CHARS],
            tool=mask_name(self.tool)[:_NAME_CHARS],
            arguments=build_shown(canonical, mask),
            arguments_digest=build_digest(canonical),
            repairs=ending.repairs,
            outcome=ending.outcome,
            error_code=ending.error_code,
            error=None if is_ok else mask(ending.content[:_MASKED_CHARS])[:_ERROR_CHARS],
            attempts=self.invocation.attempts if self.invocation is not None else 0,
            duration_s=ending.duration_s or round(duration_s, 6),
            worker=self._audit.worker,
            bytes=size_bytes,
            steps=tuple(self._steps(now)),
        )

    def _steps(self, now: float) -> Iterator[Step]:
        time_of = self._audit.time_of
        if (sent_at := self._number("sent_at")) is not None:
            yield Step(name=StepName.QUEUED, at=sent_at)
        if self.picked_up_at is not None:
            yield Step(name=StepName.PICKED_UP, at=time_of(self.picked_up_at))
        if self.invocation is not None:
            for name, at in self.invocation.steps:
                yield Step(name=name, at=time_of(at))
        yield Step(name=StepName.ANSWERED, at=time_of(now))

    def _name(self, key: str) -> str | None:
        found = self._info.get(key)
        if not isinstance(found, str):
            return None
        return self._audit.mask_name(found, server=self._server)[:_NAME_CHARS]

    def _number(self, key: str) -> float | None:
        """A time that the caller gave."""
        found = self._info.get(key)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < LATEST_S:
            return None
        return float(found)
