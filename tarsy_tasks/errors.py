"""Every error of the package, in one tree.

    TarsyTasksError
    ├── ConfigError         a configuration file, a variable or celeryconfig.py is wrong
    │   └── NoCredentialError   an agent has no credential for a server
    ├── BrokerUnavailable   Redis could not be reached, or refuses this user
    ├── ResultTimeout       `pending.result(timeout_s)` ended without an answer; the call continues
    ├── ResultNotFound      there is nothing to read under a handle
    ├── OutcomeError        `result.raise_for_outcome()`: the outcome is not `ok`
    ├── PoisonMessage       a message was moved to the dead letters: its worker was lost too often
    └── CallError           this call has no result; becomes a `ToolResult` before an agent sees it
        ├── CallRefused     an interceptor refuses the call
        ├── RateLimited     the call is over a limit
        ├── NoSessionError  the server has no session
        ├── ToolNameError   there is no such name, server or tool
        └── ArgumentsError  the arguments cannot be read, or do not fit the tool

A tool that failed is data (`ToolResult.is_error`); a call that could not be made is an exception. All arguments are
positional and passed on to `super().__init__`, because Celery rebuilds an exception of another process as `cls(*args)`.
"""

from typing import Any

from tarsy_tasks.outcomes import ErrorCode, Outcome

__all__ = [
    "ArgumentsError",
    "BrokerUnavailable",
    "CallError",
    "CallRefused",
    "ConfigError",
    "NoCredentialError",
    "NoSessionError",
    "OutcomeError",
    "PoisonMessage",
    "RateLimited",
    "ResultNotFound",
    "ResultTimeout",
    "TarsyTasksError",
    "ToolNameError",
]


class TarsyTasksError(Exception):
    """Base of all errors that the package raises. The first argument is the text."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ConfigError(TarsyTasksError):
    """The configuration is wrong; the text names file, place, what was found and the remedy."""


class NoCredentialError(ConfigError):
    """An agent has no credential. The text says where it was looked for; it is for operators."""


class BrokerUnavailable(TarsyTasksError):
    """Redis could not be reached before the deadline, or refuses this user. The text says what was not done.

    Args:
        text: What happened, and the remedy.
        may_have_run: The connection broke just as the call was sent, so Redis may have taken it; or a call that was
            sent before could not be cancelled. False: the tool did not run.
    """

    def __init__(self, text: str, may_have_run: bool = False) -> None:
        super().__init__(text, may_have_run)
        self.may_have_run = may_have_run


class ResultTimeout(TarsyTasksError):
    """`pending.result(timeout_s)` ended without an answer. The call continues: ask again, or cancel it."""


class ResultNotFound(TarsyTasksError):
    """There is no large result under a handle: it belongs to another agent, or is no longer kept; or it is damaged."""


class OutcomeError(TarsyTasksError):
    """The outcome of a call is not `ok`; raised by `result.raise_for_outcome()`.

    Args:
        text: Which call, how it ended, and the content of the result.
        result: The `ToolResult`. Where Celery rebuilt the error from another process, it is the same as a dict.
    """

    def __init__(self, text: str, result: Any = None) -> None:
        super().__init__(text, result)
        self.result = result


class PoisonMessage(TarsyTasksError):
    """A message was moved to the dead letters, because each worker that had it was lost. Its argument is the delivery
    tag, by which `tarsy-tasks dead-letters show` finds the message.
    """


class CallError(TarsyTasksError):
    """One call cannot be answered with a result.

    Args:
        code: The stable word for the cause; it implies the outcome.
        text: What happened, whether the tool ran, what to do next. Models read it.

    Attributes:
        retry_after_s: In how many seconds to try again; None if that is not known, or of no use.
    """

    retry_after_s: float | None = None

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(code, text)
        self.code = ErrorCode(code)
        self.text = text

    @property
    def outcome(self) -> Outcome:
        return self.code.outcome

    def __str__(self) -> str:
        return self.text


class CallRefused(CallError):
    """An interceptor refuses a call. Nothing was sent.

    Args:
        text: Why, and what to do instead. Models read it.
    """

    def __init__(self, text: str) -> None:
        super().__init__(ErrorCode.REFUSED, text)
        self.args = (text,)


class RateLimited(CallError):
    """A call is over a limit. Nothing was sent.

    Args:
        text: Which limit, and when to try again. Models read it.
        retry_after_s: As `CallError.retry_after_s`.
    """

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(ErrorCode.RATE_LIMITED, text)
        self.args = (text, retry_after_s)
        self.retry_after_s = retry_after_s


class NoSessionError(CallError):
    """The call cannot be sent because its server has no session.

    Args:
        operator_text: For operators: what failed and where.
    """

    def __init__(self, code: ErrorCode, text: str, operator_text: str = "") -> None:
        super().__init__(code, text)
        self.args = (code, text, operator_text)
        self.operator_text = operator_text or text


class ToolNameError(CallError):
    """A name that is not understood, or whose server or tool does not exist. Nothing was sent."""


class ArgumentsError(CallError):
    """Arguments that cannot be read as a JSON object, or do not fit the tool's schema. Nothing was sent.

    Args:
        repairs: How they were read, what was repaired so far, and last a word for why they were rejected
            (docs/arguments.md).
    """

    def __init__(self, code: ErrorCode, text: str, repairs: tuple[str, ...] = ()) -> None:
        super().__init__(code, text)
        self.args = (code, text, tuple(repairs))
        self.repairs = tuple(repairs)
