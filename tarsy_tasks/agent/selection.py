"""Which servers and tools an executor offers and accepts.

Owns the check of `servers` and `tool_filter` against the configuration. It is a selection for a model, not security.
"""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tarsy_tasks.errors import ConfigError, ToolNameError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.tool_names import build_name_list, resolve_server

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Selection", "find_servers"]


class Selection:
    """The servers and tools of one executor.

    Args:
        servers: Ids of servers; None for all that are configured and enabled.
        tool_filter: For some servers, the tools; an empty list means all.
        app: The executor's application, whose configuration counts; None for the configuration file.

    Attributes:
        servers: Ids of the selected servers, in the order given.
        tool_filter: As given, as sets.

    Raises:
        ValueError: A server that is not configured, a filter for a server that is not selected, or a plain string
            where a list belongs.
        ConfigError: `servers` is None, and the configuration is missing; or it is wrong.
    """

    def __init__(
        self,
        servers: Collection[str] | None,
        tool_filter: Mapping[str, Collection[str]] | None,
        app: "Celery | None" = None,
    ) -> None:
        wanted = None if servers is None else build_name_list(servers, "servers")
        configured = find_servers(app)
        if wanted is None and configured is None and (missing := _missing()):
            raise missing
        self.servers = list(configured or ()) if wanted is None else list(dict.fromkeys(wanted))
        if configured is not None and (unknown := [server for server in self.servers if server not in configured]):
            known = ", ".join(configured) or "none"
            raise ValueError(f"servers not configured or not enabled: {', '.join(unknown)}. Configured: {known}.")
        self.tool_filter = {
            server: frozenset(build_name_list(tools, f"tool_filter[{server!r}]"))
            for server, tools in (tool_filter or {}).items()
        }
        if unselected := self.tool_filter.keys() - set(self.servers):
            raise ValueError(f"tool_filter names servers that are not selected: {', '.join(sorted(unselected))}.")

    def includes(self, server: str, tool: str) -> bool:
        """Whether the filter lets a tool through."""
        selected = self.tool_filter.get(server)
        return not selected or tool in selected

    def resolve(self, name: str) -> tuple[str, str]:
        """The server and the tool that a name means, as far as they can be known without the server's list.

        Raises:
            ToolNameError: The name, its server or its tool is not one of the selection.
        """
        server, tool = resolve_server(name, self.servers)
        if not self.includes(server, tool):
            selected = ", ".join(f"{server}.{each}" for each in sorted(self.tool_filter[server]))
            raise ToolNameError(
                ErrorCode.TOOL_NOT_SELECTED,
                f"`{server}.{tool}` is not among the tools selected for this run. The selected tools of server "
                f"`{server}`: {selected}. Nothing was sent. Call one of them.",
            )
        return server, tool


def find_servers(app: "Celery | None") -> list[str] | None:
    """Ids of the servers that are configured and enabled; None where this machine has no configuration.

    Args:
        app: The application whose servers they are; None: those of the configuration file.

    Raises:
        ConfigError: The configuration is wrong.
    """
    try:
        if app is None:
            from tarsy_tasks.config import find_config_path, load_config

            return list(load_config(find_config_path()).enabled_servers)
        from tarsy_tasks.celery_app import mcp_config_of

        return list(mcp_config_of(app).enabled_servers)
    except ConfigError:
        if _missing() is None:
            raise
        return None


def _missing() -> ConfigError | None:
    """The error that there is no configuration file; None if there is one."""
    from tarsy_tasks.config import find_config_path

    try:
        find_config_path()
    except ConfigError as error:
        return error
    return None
