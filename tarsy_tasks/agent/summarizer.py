"""`Summarizer`: the function of an agent that makes long results short, and the settings by which it is called.

Owns where the settings come from. Calling the function is in `summaries`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent.prompt_budget import estimate_tokens
from tarsy_tasks.agent.selection import follow_servers
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.models import ToolCall

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.config.servers import ServerConfig
    from tarsy_tasks.config.summarization import Summarization

__all__ = ["SummarizedCall", "Summarizer", "SummaryFunction", "SummarySettings", "look_at_servers"]


class SummarizedCall(ToolCall):
    """The call whose result is summarized: as the model asked for it, and what is known besides.

    Attributes:
        server: Id of the MCP server.
        tool: Name of the tool on its server.
        max_tokens: How long the summary may be; a longer one is cut.
    """

    server: str
    tool: str
    max_tokens: int


SummaryFunction = Callable[[str, SummarizedCall, Any], "Awaitable[str] | str"]
"""Gets the text of a result, the call, and the `context` that the agent gave with it; returns the summary. It may be a
coroutine function."""


@dataclass(frozen=True, eq=False)
class Summarizer:
    """How an executor makes long results short.

    Args:
        function: As `summarizer(text, call, context)`; it asks any model, and may be a coroutine function.
        settings: By server: `enabled`, `size_threshold_tokens`, `summary_max_token_limit`, for servers of which the
            configuration of this process says nothing.
        count_tokens: How many tokens a text has; by default an estimate, one for 3.5 bytes.
        timeout_s: Seconds for the summary of one result, from when it is there.

    Raises:
        ValueError: The settings are wrong, or `timeout_s` is not a positive number of seconds.
    """

    function: SummaryFunction
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, "Mapping[str, Any]"])
    count_tokens: Callable[[str], int] = estimate_tokens
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s must be a positive number of seconds, not {self.timeout_s!r}")
        self.read_settings()

    @classmethod
    def of(cls, summarizer: "SummaryFunction | Summarizer") -> "Summarizer":
        """One with the usual settings, if only a function was given."""
        return summarizer if isinstance(summarizer, Summarizer) else cls(summarizer)

    def read_settings(self) -> "dict[str, Summarization]":
        """The settings, checked. Raises `ValueError`."""
        from tarsy_tasks.config.summarization import Summarization

        return {server: Summarization.model_validate(dict(each)) for server, each in self.settings.items()}


class SummarySettings:
    """The settings of each server: those of the configuration, else those of the summarizer, else the defaults. They
    are read once; for a server that was added later, when it is first asked for.

    Args:
        look: Gives the configured servers; `look_at_servers`.
    """

    def __init__(self, summarizer: Summarizer, look: "Callable[[], Mapping[str, ServerConfig]]") -> None:
        from tarsy_tasks.config.summarization import Summarization

        self._look = look
        self._given = summarizer.read_settings()
        self._default = Summarization()
        self._known = {server: self._find(server, found) for server, found in self._look().items()}

    def of(self, server: str) -> "Summarization":
        """The settings of a server."""
        if server not in self._known:
            self._known[server] = self._find(server, self._look().get(server))
        return self._known[server]

    def _find(self, server: str, found: "ServerConfig | None") -> "Summarization":
        if found is not None and found.summarization is not None:
            return found.summarization
        return self._given.get(server, self._default)


def look_at_servers(app: "Celery | None") -> "Callable[[], Mapping[str, ServerConfig]]":
    """Gives the servers that this process knows, whenever it is called; none without a configuration."""
    try:
        return follow_servers(app)
    except ConfigError:  # there is none; the selection of the executor has raised what is wrong with one
        return dict
