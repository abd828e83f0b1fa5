"""Every error of the package, in one tree.

    TarsyTasksError
    ├── ConfigError         a configuration file, a variable or celeryconfig.py is wrong
    ├── BrokerUnavailable   Redis could not be reached: the call was not enqueued
    ├── ResultTimeout       `pending.result(timeout)` ran out; the call goes on
    ├── PoisonMessage       a message was set aside: it was lost with its worker too often
    └── CallError           this call has no result; becomes a `ToolResult` before an agent sees it
        ├── CallRefused     an interceptor refuses the call
        ├── NoSessionError  the server has no session
        ├── ToolNameError   no such name, server or tool
        └── ArgumentsError  the arguments cannot be read, or do not fit the tool

"The tool said no" is data (`ToolResult.is_error`); "we could not ask" is an exception. Arguments are positional and
handed to `super().__init__` whole, because Celery rebuilds an exception of another process as `cls(*args)`.
"""

from tarsy_tasks.outcomes import ErrorCode, Outcome

__all__ = [
    "ArgumentsError",
    "BrokerUnavailable",
    "CallError",
    "CallRefused",
    "ConfigError",
    "NoSessionError",
    "PoisonMessage",
    "ResultTimeout",
    "TarsyTasksError",
    "ToolNameError",
]


class TarsyTasksError(Exception):
    """Base of all errors that the package raises."""


class ConfigError(TarsyTasksError):
    """The configuration is wrong; the text names file, place, what was found and the remedy."""


class BrokerUnavailable(TarsyTasksError):
    """Redis could not be reached within the deadline, so the call was not enqueued and the tool did not run."""


class ResultTimeout(TarsyTasksError):
    """`pending.result(timeout)` ran out of time. The call goes on: ask again, or cancel it."""


class PoisonMessage(TarsyTasksError):
    """A message was set aside: each worker that had it was lost. `tarsy-tasks poison` shows it. Its argument is the tag
    of the message.
    """


class CallError(TarsyTasksError):
    """One call cannot be answered with a result.

    Args:
        code: The stable word for the cause; it implies the outcome.
        text: What happened, whether the tool ran, what to do. Models read it.
    """

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
    """A name that is no `server.tool`, or names a server or tool that does not exist. Nothing was sent."""


class ArgumentsError(CallError):
    """Arguments that cannot be read as a JSON object, or that the tool's schema refuses. Nothing was sent.

    Args:
        repairs: As what they were read, what was mended so far, and last a word for why not (docs/arguments.md).
    """

    def __init__(self, code: ErrorCode, text: str, repairs: tuple[str, ...] = ()) -> None:
        super().__init__(code, text)
        self.args = (code, text, tuple(repairs))
        self.repairs = tuple(repairs)
