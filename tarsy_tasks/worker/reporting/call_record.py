"""What is known of one call in this worker's hands, from its message to its ending.

Owns the notes that the steps of a call leave behind, and what the call's ending is when Celery ends it: failed,
revoked, withdrawn or refused. `audit_writer` and the other observers decide what becomes of them.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from celery import states

from tarsy_tasks.broker.begun import Begun
from tarsy_tasks.broker.delivery import AuditWrite
from tarsy_tasks.broker.messages import CallMessage
from tarsy_tasks.broker.task_failures import build_task_failure
from tarsy_tasks.call_events import CallProgress
from tarsy_tasks.errors import CallError
from tarsy_tasks.interceptors import ANONYMOUS, Ending
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.policy import Denial
from tarsy_tasks.priorities import NORMAL, Priority
from tarsy_tasks.telemetry.audit import LATEST_S, StepName
from tarsy_tasks.telemetry.shown_arguments import select_audited

__all__ = ["CallRecord", "Observer", "Recorder"]


class Observer(Protocol):
    """Sees how each call ended; it does no I/O and must not raise."""

    def ended(self, record: "CallRecord", result: ToolResult) -> None:
        """Called once per call, in the worker whose answer was stored, or that acknowledged the message."""


class Recorder(Protocol):
    """Turns a call's ending into its audit entry."""

    def build_write(self, record: "CallRecord", result: ToolResult, size_bytes: int | None) -> AuditWrite: ...

    def time_of(self, monotonic_s: float) -> float: ...


class ProgressSource(Protocol):
    """Attributes:
    shown: The last progress that was published; None before. Safe to read from any thread.
    """

    shown: CallProgress | None


class CallRecord:
    """What is known of one call.

    Args:
        message: What the message says of the call; any producer may have written it.
        server: Id of the server, if the message does not say it.
        begun_before: Who had begun it before this worker took it.

    Attributes:
        picked_up_at: When the worker began to work on it, monotonic time; None before.
        principal: Who sent it, as far as that is verified.
        priority: By which it waited.
        tool: Name of the tool, in the end as the server lists it; or the method that stands in its place.
        operation: As `Call.operation`.
        is_served: This worker serves the server.
        is_listed: The server lists that tool.
        arguments: As they came, in the end as they are sent to the MCP server; of answers of people, no values.
        has_begun: It may be sent: all checks passed and the begin marker is written.
        attempts: How often it was sent. Safe to read from any thread.
        steps: When it was sent, and when a new session replaced a lost one; monotonic times.
        policy: The version of the policy that decided it; empty if none did.
        denial: Why the policy does not permit it, if so.
        approval: What people decided of it, and who; empty if nobody was asked.
        rounds: How often its server has asked for input.
        answered: Who has answered last, and when nobody did; empty if nobody was asked.
        failure: Why it has no `result`.
        ended: How a call ended that ran before its task: the task only stores that.
        feed: Has the progress of a call to whose events somebody listens.
    """

    def __init__(
        self,
        recorder: Recorder,
        task_id: str,
        message: CallMessage,
        server: str = "",
        begun_before: Sequence[Begun] = (),
    ) -> None:
        self.task_id = task_id
        self.info = message.info
        self.server = message.server or server
        self.begun_before = begun_before
        self.picked_up_at: float | None = None
        self.principal = ANONYMOUS
        self.priority: Priority = NORMAL
        self.tool = message.tool
        self.operation = message.operation
        self.is_served = False
        self.is_listed = False
        self.arguments: Any = select_audited(self.operation, message.arguments)
        self.has_begun = False
        self.attempts = 0
        self.steps: list[tuple[StepName, float]] = []
        self.policy = ""
        self.denial: Denial | None = None
        self.approval = ""
        self.rounds = 0
        self.answered = ""
        self.result: ToolResult | None = None
        self.failure: CallError | None = None
        self.ended: Ending | Exception | None = None
        self.feed: ProgressSource | None = None
        self._recorder = recorder

    @property
    def title(self) -> str:
        """What was called, in words."""
        return f"`{self.server}.{self.tool}`"

    @property
    def input(self) -> str:
        """Its rounds of questions, for the audit."""
        rounds = f"{self.rounds} round{'s' if self.rounds != 1 else ''}"
        return f"{rounds}, {self.answered}" if self.answered else rounds

    def write(self, status: str | None = None, result: Any = None, size_bytes: int | None = None) -> AuditWrite:
        """As `AuditSource.write`."""
        return self._recorder.build_write(self, self._ending(status, result), size_bytes)

    def fail(self, error: BaseException) -> None:
        """Its task failed, and stores that or not."""
        encoded = {"exc_type": type(error).__name__}
        self.failure = build_task_failure(self.task_id, states.FAILURE, encoded, self.title)

    def time(self, key: str) -> float | None:
        """A time that the caller gave, in seconds since the epoch; None without a usable one."""
        found = self.info.get(key)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < LATEST_S:
            return None
        return float(found)

    def _ending(self, status: str | None, result: Any) -> ToolResult:
        """What the agent receives."""
        if status == states.SUCCESS and isinstance(result, ToolResult):
            return result
        if status is None and self.result is not None:
            return self.result
        if status is None and self.failure is not None:
            failure = self.failure
        elif status is None and not self.has_begun:
            failure = self._withdrawn()
        else:
            failure = build_task_failure(self.task_id, status or states.REVOKED, result, self.title)
        return ToolResult.from_error(failure, call_id="", name="", attempts=self.attempts)

    def _withdrawn(self) -> CallError:
        deadline = self.time("deadline")
        if deadline is not None and self._recorder.time_of(time.monotonic()) > deadline:
            text = f"{self.title} was not started before its deadline, and its caller withdrew it."
            return CallError(ErrorCode.NOT_STARTED, f"{text} The tool did not run.")
        return CallError(
            ErrorCode.CANCELLED, f"{self.title} was withdrawn by its caller before it began. The tool did not run."
        )
