"""Tool calls as Celery signatures, for group, chain and chord.

Owns the one function that builds them. Code without a canvas uses an executor.
"""

import re
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent.selection import find_servers
from tarsy_tasks.agent.submitted import check_priority
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.priority_lists import number_of
from tarsy_tasks.models import CallInfo
from tarsy_tasks.priorities import NORMAL, Priority
from tarsy_tasks.tool_names import resolve_server

if TYPE_CHECKING:
    from celery import Celery
    from celery.canvas import Signature

__all__ = ["tool_signature"]


def tool_signature(
    name: str,
    arguments: dict[str, Any] | str | None = None,
    *,
    call_id: str = "",
    timeout_s: float | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
    priority: Priority = NORMAL,
    no_cache: bool = False,
    park: bool = False,
    app: "Celery | None" = None,
) -> "Signature":
    """A tool call as an immutable signature that names its queue.

    Its result is a `ToolResult` as JSON (docs/protocol.md): `ToolResult.model_validate(signature.delay().get())`.

    Args:
        name: `server.tool`, or another form that an executor accepts. On a machine without a configuration, where the
            servers are not known: `server.tool`, `server:tool` or `server__tool`.
        arguments: A mapping, or the text that a model wrote.
        call_id: Echoed in the result.
        timeout_s: Seconds that the tool may take; None for the server's own limit.
        agent_id: Who calls, for the audit.
        run_id: In which run, for the audit.
        priority: `interactive`, `normal` or `batch`.
        no_cache: As of `ToolCall`.
        park: What follows waits while a person has to approve the call (docs/approval.md); else it is rejected.
        app: The Celery application to send it with, whose configuration names the servers. None: the package's own.

    Raises:
        ToolNameError: The name is not understood, or there is no such server.
        ConfigError: The configuration is wrong.
        ValueError: The priority is unknown.
    """
    check_priority(priority)
    servers = find_servers(app)
    if servers is None:
        servers = [re.split(r"[.:]|__", name, maxsplit=1)[0]]
    server, tool = resolve_server(name, servers)
    from tarsy_tasks.celery_app import agent_app, bound_agent

    app = agent_app() if app is None else app
    info = CallInfo(
        call_id=call_id,
        name=name,
        timeout_s=timeout_s,
        agent_id=agent_id,
        run_id=run_id,
        no_cache=no_cache,
        park=park,
    )
    return app.signature(
        "tarsy.call_tool",
        args=(server, tool, arguments, info.model_dump(exclude_none=True)),
        immutable=True,
        queue=keys.call_queue(server, bound_agent(app)),
        **({} if priority == NORMAL else {"priority": number_of(priority)}),
        argsrepr=f"{server}.{tool}",
        kwargsrepr="{}",
    )
