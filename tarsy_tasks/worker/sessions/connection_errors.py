"""The errors for a server that has no session.

Owns their texts, one for the model that called and one for operators: a model reads whether the tool ran and what to do
next, an operator what failed and where.
"""

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import ConfigError, NoSessionError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.backoff import FailedAttempt
from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.listing import ListingError
from tarsy_tasks.worker.sessions.recovery import Action, Executed, classify_error
from tarsy_tasks.worker.transport.server_output import ServerOutput

__all__ = ["ConnectionErrors"]

_TRY_LATER = "The tool did not run. Try again later, or continue without it."


class ConnectionErrors:
    """Builds the errors of one server, with its last output. Safe to call from any thread."""

    def __init__(self, server: ServerConfig, masker: Masker, output: ServerOutput) -> None:
        self._server = server
        self._masker = masker
        self._output = output

    def not_opened(self, failure: FailedAttempt) -> NoSessionError:
        """No session could be opened."""
        name, error = self._server.name, failure.error
        code, remedy = ErrorCode.SERVER_REFUSED, "The tool did not run. An operator must fix this; continue without it."
        if isinstance(error, ConfigError):
            code, found = ErrorCode.SERVER_MISCONFIGURED, f"MCP server `{name}` is misconfigured: {error}."
        else:
            what = self.describe_failure(error, failure.end_reason)
            found = f"MCP server `{name}` is not available: {what}.{self.describe_end('')}"
            verdict = classify_error(error)
            if verdict.action is not Action.NO_RETRY or verdict.executed is not Executed.NO:
                code, remedy = ErrorCode.SERVER_UNAVAILABLE, _TRY_LATER
        return NoSessionError(code, f"{found} {remedy}", found)

    def out_of_reach(self, seconds: float, reason: str) -> NoSessionError:
        """The server is known to be unreachable, so it was not tried."""
        return self._unavailable(f"has been unreachable for {seconds:.0f} s: {reason}.{self.describe_end('')}")

    def not_connected_within(self, timeout_s: float) -> NoSessionError:
        """The caller could not wait for the connection any longer."""
        return self._unavailable(f"was not connected within {timeout_s:.3g} s.{self.describe_end('')}")

    def tools_not_listed(self, error: BaseException, end_reason: str) -> NoSessionError:
        """An operator's request for the list of tools failed."""
        return self._unavailable(f"failed to list its tools: {self.describe_failure(error, end_reason)}.")

    def disconnected_by_operator(self) -> NoSessionError:
        found = f"An operator has disconnected MCP server `{self._server.name}`."
        remedy = f"`celery -A tarsy_tasks control mcp_reconnect {self._server.name}` connects it again."
        return NoSessionError(ErrorCode.SERVER_UNAVAILABLE, f"{found} {_TRY_LATER}", f"{found} {remedy}")

    def suspended(self, left_s: float, reason: str) -> NoSessionError:
        """The server costs the worker too much."""
        found = f"MCP server `{self._server.name}` is suspended for {left_s:.0f} s: {reason}."
        remedy = f"`celery -A tarsy_tasks control mcp_reconnect {self._server.name}` ends that at once."
        return NoSessionError(ErrorCode.SERVER_UNAVAILABLE, f"{found} {_TRY_LATER}", f"{found} {remedy}")

    def worker_stopping(self) -> NoSessionError:
        found = "The worker is stopping."
        return NoSessionError(ErrorCode.SERVER_UNAVAILABLE, f"{found} The tool did not run; call it again.", found)

    def _unavailable(self, what: str) -> NoSessionError:
        found = f"MCP server `{self._server.name}` {what}"
        return NoSessionError(ErrorCode.SERVER_UNAVAILABLE, f"{found} {_TRY_LATER}", found)

    def describe_failure(self, error: BaseException, end_reason: str) -> str:
        """What failed, without a full stop."""
        if isinstance(error, TimeoutError):
            return f"it did not complete the handshake within {self._server.timeouts.connect_s:g} s"
        if isinstance(error, ListingError):
            return f"it {error}"
        return end_reason if end_reason.startswith("it") else describe_error(error, self._masker)

    def describe_end(self, reason: str) -> str:
        """Why a session ended, and the server's last lines: sentences for an error text, or nothing."""
        lines = self._output.last_lines()
        text = f" It ended because {reason}." if reason else ""
        return text + (f" Its last output: {lines!r}." if lines else "")
