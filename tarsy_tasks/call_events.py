"""What happens to a call while it runs: progress and log lines of its server, a retry, a deadline that moved.

Owns these events, and the batch in which a worker publishes them (docs/protocol.md). MCP has no other streaming: the
result of a tool comes as a whole.
"""

from operator import not_
from typing import Literal

from pydantic import Field

from tarsy_tasks.models import FrozenModel

__all__ = ["CallEvent", "CallLog", "CallProgress", "CallRestarted", "DeadlineMoved", "EventBatch"]

_finite = Field(allow_inf_nan=False)


class CallProgress(FrozenModel):
    """How far a call is, as its server says. Within one attempt it does not go backwards.

    Attributes:
        progress: In a unit of the server's own.
        total: Of which, if the server knows that.
        message: For people; masked, at most 500 characters.
        at: When the worker published it, in seconds since the epoch by the clock of Redis.
    """

    progress: float = _finite
    total: float | None = Field(default=None, allow_inf_nan=False)
    message: str = ""
    at: float = Field(default=0.0, allow_inf_nan=False)


class CallLog(FrozenModel):
    """A log line that the server wrote for this call.

    Attributes:
        level: Of RFC 5424, such as `info` and `warning`, as the server names it.
        logger: The server's name for where it comes from; empty without one.
        text: Masked, at most 500 characters. What is not a text is JSON.
        at: As of `CallProgress`.
        lost: How many lines before it were left out, because there were too many at once.
    """

    level: str
    logger: str = Field(default="", exclude_if=not_)
    text: str
    at: float = Field(default=0.0, allow_inf_nan=False)
    lost: int = Field(default=0, ge=0, exclude_if=not_)


class CallRestarted(FrozenModel):
    """The call is made again, on a new session or by another worker: progress begins at the beginning.

    Attributes:
        attempt: How often its worker has sent it, this time included.
        is_other_worker: It was delivered again, because its worker was lost or stopped.
        at: As of `CallProgress`.
    """

    attempt: int
    is_other_worker: bool
    at: float


class DeadlineMoved(FrozenModel):
    """The call may take longer, because its server makes progress (`timeouts.progress_extends`).

    Attributes:
        timeout_s: From when the call was submitted until its new deadline.
        at: As of `CallProgress`.
    """

    timeout_s: float
    at: float


CallEvent = CallProgress | CallLog | CallRestarted | DeadlineMoved


class EventBatch(FrozenModel):
    """What a worker publishes of a call, at most ten times a second: how it stands now, and the log lines since the
    last batch. So a batch that was lost costs log lines only.

    Attributes:
        events: Version of this shape.
        since: When this worker began with the call, by the clock of Redis. Of two batches, the one with the later
            `since`, and then with the higher `number`, is newer.
        at: When it was published.
        delivery: The delivery count of the call.
        attempt: How often this worker has sent it.
        progress: The last progress of this attempt.
        deadline: Until when the worker lets it run, if progress has moved that.
        until: Beyond this, progress does not move it.
        logs: Log lines, oldest first; not in the stored state.
    """

    events: Literal[1] = 1
    task_id: str
    since: float = _finite
    number: int
    at: float = _finite
    delivery: int = 1
    attempt: int = 1
    progress: CallProgress | None = None
    deadline: float | None = Field(default=None, allow_inf_nan=False)
    until: float | None = Field(default=None, allow_inf_nan=False)
    logs: tuple[CallLog, ...] = Field(default=(), exclude_if=not_)

    def dump(self, *, is_state: bool = False) -> bytes:
        """As JSON, that begins with `{"events":`; for the stored state without what has only just happened."""
        return self.model_dump_json(exclude_none=True, exclude={"logs"} if is_state else None).encode()
