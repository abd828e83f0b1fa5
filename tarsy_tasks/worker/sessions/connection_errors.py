"""The errors for a server that has no session.

Owns their texts, one for the model that called and one for operators: a model reads whether the tool ran and what to do
next, an operator what failed and where.
"""

import re
from collections.abc import Callable
from pathlib import Path

from mcp import MCPError

from tarsy_tasks.config import OAuthSignIn, ServerConfig
from tarsy_tasks.errors import CallError, ConfigError, NoCredentialError, NoSessionError
from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.maskers import Masker, build_value_masker
from tarsy_tasks.worker.sessions.backoff import FailedAttempt
from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.listing import ListingError
from tarsy_tasks.worker.sessions.recovery import Action, Executed, classify_error, data_of
from tarsy_tasks.worker.transport.server_output import ServerOutput

__all__ = ["ConnectionErrors", "removed_error"]

_UNAUTHORIZED = 401
_HALF_INSTALLED = re.compile(r"/_npx/|MODULE_NOT_FOUND|npm error Invalid Version")
"""In the output of a program that npx has installed: perhaps not all of it is there."""
_TRY_LATER = "The tool did not run. Try again later, or continue without it."


class ConnectionErrors:
    """Builds the errors of one server, with its last output. Safe to call from any thread.

    Attributes:
        connect_s: How long the last attempt might take.
        longer_attempt_s: How long the next one may take, if a program that has not started yet took too long, and gets
            more time; None otherwise.

    Args:
        find_address: Gives the server's URL without credentials; empty for a server that is a process.
    """

    def __init__(
        self, server: ServerConfig, masker: Masker, output: ServerOutput, find_address: Callable[[], str]
    ) -> None:
        self._server = server
        self._masker = masker
        self._output = output
        self._find_address = find_address
        self._values = build_value_masker()
        self.connect_s = server.timeouts.connect_s
        self.longer_attempt_s: float | None = None

    def not_opened(self, failure: FailedAttempt, next_s: float) -> NoSessionError:
        """No session could be opened; the next attempt may take `next_s`."""
        error = failure.error
        code, remedy = ErrorCode.SERVER_REFUSED, "The tool did not run. An operator must fix this; continue without it."
        if isinstance(error, ConfigError):
            if isinstance(error, NoCredentialError):
                found = f"{self._who} cannot be used without a credential of the agent that calls: {error}."
                return self._error(ErrorCode.NO_CREDENTIAL, found, remedy)
            code, how = ErrorCode.SERVER_MISCONFIGURED, "could not start" if self._is_process else "is misconfigured"
            return self._error(code, f"{self._who} {how}: {error}.", remedy)
        what = self.describe_failure(error, failure.end_reason)
        found = f"{self._who} is not available: {what}{self._where}.{self.describe_end('')}"
        if command := self.find_sign_in(error):
            remedy = f"The tool did not run. An operator must sign in again (`{command}`); continue without it."
        verdict = classify_error(error)
        if verdict.action is not Action.NO_RETRY or verdict.executed is not Executed.NO:
            code, remedy = ErrorCode.SERVER_UNAVAILABLE, _TRY_LATER
        return self._error(code, found, remedy, self._advise(error, next_s, found))

    def _advise(self, error: Exception, next_s: float, found: str) -> str:
        """For operators, what to do about a failure; empty if its text says all."""
        if isinstance(error, TimeoutError) and self._is_process:
            return (
                f" The next attempt may take {next_s:g} s. A program that npx or uvx has to download first may need "
                "longer: set `timeouts.connect_s`, or install it beforehand."
            )
        if isinstance(error, TimeoutError):
            return " If it needs longer, set `timeouts.connect_s`."
        if command := self.find_sign_in(error):
            return f" Sign in again: `{command}`."
        if isinstance(error, MCPError) and data_of(error).get("status") == _UNAUTHORIZED:
            return " Set `auth` in the configuration of the server, or correct it."
        if Path(self._server.command or "").name == "npx" and _HALF_INSTALLED.search(found):
            return (
                " If an installation by npx was interrupted, delete what it left: the folder `_npx` in the cache of "
                "npm (`npm config get cache`)."
            )
        return ""

    def find_sign_in(self, error: BaseException) -> str:
        """The command by which an operator gets a token that the server may take, after it has refused one; empty if it
        has not, or nobody signs in to it."""
        if not (isinstance(error, MCPError) and isinstance(self._server.auth, OAuthSignIn)):
            return ""
        data = data_of(error)
        if data.get("status") != _UNAUTHORIZED and "scope" not in data:
            return ""
        scopes = data["scope"].split() or ["…"] if "scope" in data else []
        return " ".join([f"tarsy-tasks auth login {self._server.name}", *(f"--scope {each}" for each in scopes)])

    def out_of_reach(self, seconds: float, reason: str) -> NoSessionError:
        """The server is known to be unreachable, so it was not tried; `reason` is from `describe_unreachable`."""
        return self._unavailable(f"has been unreachable for {seconds:.0f} s: {reason}")

    def not_connected_within(self, timeout_s: float) -> NoSessionError:
        """The caller could not wait for the connection any longer."""
        return self._unavailable(f"was not connected within {timeout_s:.3g} s{self._where}.{self.describe_end('')}")

    def tools_not_listed(self, error: BaseException, end_reason: str) -> NoSessionError:
        """An operator's request for the list of tools failed."""
        return self._unavailable(f"failed to list its tools: {self.describe_failure(error, end_reason)}{self._where}.")

    @property
    def _is_process(self) -> bool:
        return self._server.transport == "stdio"

    @property
    def _who(self) -> str:
        return f"MCP server `{self._server.name}`"

    @property
    def _where(self) -> str:
        """The address, behind what happened there."""
        return f" ({address})" if (address := self._find_address()) else ""

    def _error(self, code: ErrorCode, found: str, remedy: str, advice: str = "") -> NoSessionError:
        """For the model what was found and the remedy, for operators what was found and the advice. All parts are
        masked already, or our own."""
        text, operator_text = map(self._values.mask, (f"{found} {remedy}", f"{found}{advice}"))
        return NoSessionError(code, MaskedText(text), MaskedText(operator_text))

    def disconnected_by_operator(self) -> NoSessionError:
        found = f"An operator has disconnected MCP server `{self._server.name}`."
        advice = f" `celery -A tarsy_tasks control mcp_reconnect {self._server.name}` connects it again."
        return self._error(ErrorCode.SERVER_UNAVAILABLE, found, _TRY_LATER, advice)

    def per_agent(self) -> NoSessionError:
        """Only agents have sessions with the server, each with its own credential."""
        found = f"{self._who} is called with the credential of each agent, so the worker itself has no session with it."
        advice = " For one, set `agent_credentials.service`, and give the workers a credential."
        return self._error(ErrorCode.NO_CREDENTIAL, found, "The tool did not run.", advice)

    def suspended(self, how: str) -> NoSessionError:
        """The server costs the worker too much, or fails too many calls; `how` is `Suspension.text`."""
        found = f"{self._who} is {how}."
        advice = f" `celery -A tarsy_tasks control mcp_reconnect {self._server.name}` ends that at once."
        return self._error(ErrorCode.SERVER_UNAVAILABLE, found, _TRY_LATER, advice)

    def removed(self) -> NoSessionError:
        """The server is in the configuration no longer."""
        error = removed_error(self._server.name)
        return NoSessionError(error.code, MaskedText(error.text), MaskedText(error.text))

    def worker_stopping(self) -> NoSessionError:
        remedy = "The tool did not run; call it again."
        return self._error(ErrorCode.SERVER_UNAVAILABLE, "The worker is stopping.", remedy)

    def _unavailable(self, what: str) -> NoSessionError:
        return self._error(ErrorCode.SERVER_UNAVAILABLE, f"{self._who} {what}", _TRY_LATER)

    def describe_failure(self, error: BaseException, end_reason: str) -> str:
        """What failed, without a full stop."""
        if isinstance(error, TimeoutError):
            return f"it did not complete the handshake within {self.connect_s:g} s"
        if isinstance(error, ListingError):
            return f"it {error}"
        return end_reason if end_reason.startswith("it") else describe_error(error, self._masker)

    def describe_unreachable(self, error: BaseException, end_reason: str) -> str:
        """What failed, where, and the server's last lines. Later attempts have output of their own."""
        return f"{self.describe_failure(error, end_reason)}{self._where}.{self.describe_end('')}"

    def describe_end(self, reason: str) -> str:
        """Why a session ended, and the server's last lines: sentences for an error text, or nothing."""
        lines = self._output.last_lines()
        text = f" It ended because {reason}." if reason else ""
        return text + (f" Its last output: {lines!r}." if lines else "")


def removed_error(server: str) -> CallError:
    """The answer to a call of a server that is in the configuration no longer."""
    return CallError(
        ErrorCode.SERVER_REMOVED,
        f"MCP server `{server}` was removed from this deployment, or disabled. The tool did not run. Calling it again "
        "will not help: continue without it.",
    )
