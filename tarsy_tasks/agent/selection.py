"""Which servers and tools an executor offers and accepts.

Owns the check of `servers` and `tool_filter` against the configuration. It is a selection for a model, not security.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from tarsy_tasks.broker.large_results import READ_RESULT
from tarsy_tasks.errors import ConfigError, ToolNameError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import build_name_list, listed_name, resolve_server, resolve_tool_name

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.config.servers import ServerConfig

__all__ = ["Selection", "find_servers", "follow_servers"]

_KNOWN_NAMES = 256
_NAME_CHARS = 80
_OWN = READ_RESULT.partition(".")[0]
"""A configured server of this name comes first; then models cannot read on."""
_OWN_TOOL = re.compile(READ_RESULT.replace(".", r"(?:\.|:|__)") + "|mcp_" + READ_RESULT.replace(".", "_"))


class Selection:
    """The servers and tools of one executor. Arguments and errors are those of `ToolExecutor`.

    Attributes:
        servers: Ids of the selected servers, in the order given; or of all, as of the last `refresh`.
        tool_filter: For some servers, the tools; an empty set means all.
        native: The tools that are functions of the agent, by the part of their names that stands for a server.
        resolve: Gives the server and the tool that a name means, as far as they can be known without the server's list.
            Raises `ToolNameError`.
    """

    def __init__(
        self,
        servers: Collection[str] | None,
        tool_filter: Mapping[str, Collection[str]] | None,
        app: "Celery | None",
    ) -> None:
        wanted = None if servers is None else build_name_list(servers, "servers")
        self._look = follow_servers(app) if wanted is None else None
        configured = find_servers(app) if self._look is None else list(self._look())
        self.servers = list(dict.fromkeys(wanted if wanted is not None else configured or ()))
        if configured is not None and (unknown := [server for server in self.servers if server not in configured]):
            known = ", ".join(configured) or "none"
            raise ValueError(f"servers not configured or not enabled: {', '.join(unknown)}. Configured: {known}.")
        self.native: dict[str, list[str]] = {}
        # A model calls the same few tools again and again.
        known = lru_cache(_KNOWN_NAMES)(self._resolve)
        self.resolve: Callable[[str], tuple[str, str]] = known
        self._forget_names = known.cache_clear
        self.tool_filter = {
            server: frozenset(map(listed_name, build_name_list(tools, f"tool_filter[{server!r}]")))
            for server, tools in (tool_filter or {}).items()
        }
        if unselected := self.tool_filter.keys() - set(self.servers):
            raise ValueError(f"tool_filter names servers that are not selected: {', '.join(sorted(unselected))}.")

    def includes(self, server: str, tool: str) -> bool:
        """Whether the filter lets a tool through."""
        selected = self.tool_filter.get(server)
        return not selected or tool in selected

    def is_own(self, server: str) -> bool:
        """Whether a server is none, but the package itself."""
        return server == _OWN and server not in self.servers

    def add_native(self, server: str, tool: str) -> None:
        """Have a name mean a function of the agent.

        Raises:
            ValueError: There is a server of that name, or such a tool, or it cannot be a name.
        """
        from tarsy_tasks.config.server_ids import SERVER_ID_PATTERN

        if re.match(SERVER_ID_PATTERN, server) is None or server in (_OWN, *self.servers):
            raise ValueError(
                f"{server!r} cannot come before the name of a native tool: it is the id of an MCP server, or not valid"
            )
        if tool in self.native.setdefault(server, []):
            raise ValueError(f"there is a native tool `{server}.{tool}` already")
        self.native[server].append(tool)
        self._forget_names()

    def remove_native(self, server: str) -> None:
        """Have no name mean a function of the agent under `server`. Raises `ValueError` if none does."""
        if self.native.pop(server, None) is None:
            raise ValueError(
                f"there are no native tools under {server!r}; there are: {', '.join(self.native) or 'none'}"
            )
        self._forget_names()

    def refresh(self) -> bool:
        """Where all servers are selected, go by the configuration as it is now. Returns whether they have changed."""
        if self._look is None or (found := list(self._look())) == self.servers:
            return False
        self.servers = found
        self._forget_names()
        return True

    def require_server(self, server: str) -> None:
        """Raises `ToolNameError`, with the servers that there are, for one that is not selected."""
        if server not in self.servers and not (self.refresh() and server in self.servers):
            known = ", ".join(self.servers) or "none"
            raise ToolNameError(
                ErrorCode.UNKNOWN_SERVER,
                f"There is no MCP server `{server[:_NAME_CHARS]}` here. Nothing was sent. The servers: {known}.",
            )

    def _resolve(self, name: str) -> tuple[str, str]:
        try:
            return self._find(name)
        except ToolNameError:
            if not self.refresh():  # it may be of a server that was added
                raise
        return self._find(name)

    def _find(self, name: str) -> tuple[str, str]:
        if _OWN not in self.servers and _OWN_TOOL.fullmatch(name):
            return _OWN, READ_RESULT.partition(".")[2]
        server, tool = resolve_server(name, [*self.servers, *self.native])
        if server in self.native:
            return resolve_tool_name(f"{server}.{tool}", self.native)
        if not (selected := self.tool_filter.get(server)):
            return server, tool
        try:
            return resolve_tool_name(f"{server}.{tool}", {server: selected})
        except ToolNameError:
            names = ", ".join(f"{server}.{each}" for each in sorted(selected))
            raise ToolNameError(
                ErrorCode.TOOL_NOT_SELECTED,
                f"`{server}.{tool}` is not among the tools selected for this run. The selected tools of server "
                f"`{server}`: {names}. Nothing was sent. Call one of them.",
            ) from None


def follow_servers(app: "Celery | None") -> "Callable[[], Mapping[str, ServerConfig]]":
    """Gives all servers by id, whenever it is called: those of the application or of the configuration file.

    Raises:
        ConfigError: The configuration is missing or wrong.
    """
    if app is not None:
        from tarsy_tasks.celery_app import TarsyApp

        if isinstance(app, TarsyApp) and not app.is_agent:
            return lambda: app.mcp_config.enabled_servers
    from tarsy_tasks.config.following import FollowedConfig

    followed = FollowedConfig()
    return lambda: followed.look().enabled_servers


def find_servers(app: "Celery | None") -> list[str] | None:
    """Ids of the servers that are configured and enabled, for the application or else in the configuration file.

    Returns:
        None where this machine has no configuration.

    Raises:
        ConfigError: The configuration is wrong.
    """
    from tarsy_tasks.config import find_config_path, load_config

    try:
        if app is None:
            return list(load_config(find_config_path()).enabled_servers)
        from tarsy_tasks.celery_app import mcp_config_of

        return list(mcp_config_of(app).enabled_servers)
    except ConfigError:
        try:
            find_config_path()
        except ConfigError:
            return None
        raise
