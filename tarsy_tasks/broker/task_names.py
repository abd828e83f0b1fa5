"""The names of the package's Celery tasks, and the queue that each one goes to.

Owns the names and the routing rule, which are all that a producer needs. The tasks are in `worker.calls.tasks`.
"""

from typing import Any

from tarsy_tasks.broker import keys

__all__ = ["CALLS", "CALL_TOOL", "CHECK_SERVER", "LIST_TOOLS", "PREFIX", "REQUEST", "route_task", "server_of"]

PREFIX = "tarsy."
CALL_TOOL = "tarsy.call_tool"
LIST_TOOLS = "tarsy.list_tools"
REQUEST = "tarsy.request"
CHECK_SERVER = "tarsy.check_server"
CALLS = (CALL_TOOL, REQUEST)
"""Those whose messages are calls: of a tool, or another request to an MCP server."""


def route_task(name: str, args: Any = (), kwargs: Any = None, *_: Any, **__: Any) -> dict[str, Any] | None:
    """Celery router: our tasks go to the queue of the server that they name first."""
    if name not in (*CALLS, LIST_TOOLS, CHECK_SERVER):
        return None
    server = server_of(args, kwargs)
    if server is None:
        return None
    return {"queue": keys.check_queue(server) if name == CHECK_SERVER else keys.queue(server)}


def server_of(args: Any, kwargs: Any) -> str | None:
    """The server that the arguments of one of our tasks name; None if they name none."""
    server: Any = kwargs["server"] if kwargs and "server" in kwargs else args[0] if args else None
    return server if isinstance(server, str) else None
