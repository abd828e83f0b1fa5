"""Tool calls as Celery signatures, for group, chain and chord.

Owns the one function that builds them. Whoever needs no canvas takes an executor.
"""

from typing import TYPE_CHECKING, Any

from tarsy_tasks.broker import keys
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.models import CallInfo
from tarsy_tasks.outcomes import ErrorCode

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
    app: "Celery | None" = None,
) -> "Signature":
    """A tool call as an immutable signature that names its queue.

    Its result is a `ToolResult` as JSON (docs/protocol.md): `ToolResult.model_validate(signature.delay().get())`.

    Args:
        name: `server.tool` or `server__tool`.
        arguments: A mapping, or the text that a model wrote.
        call_id: Echoed in the result.
        timeout_s: Seconds that the tool may take; None for the server's own limit.
        app: The Celery application to send it with; None for the package's own.

    Raises:
        ToolNameError: The name is no `server.tool`.
    """
    if app is None:
        from tarsy_tasks.celery_app import agent_app

        app = agent_app()
    server, dot, tool = name.partition(".")
    if not dot:
        server, dot, tool = name.partition("__")
    if not (server and tool):
        raise ToolNameError(ErrorCode.INVALID_NAME, f"`{name}` is no name of the form `server.tool`.")
    info = CallInfo(call_id=call_id, name=name, timeout_s=timeout_s, agent_id=agent_id, run_id=run_id)
    return app.signature(
        "tarsy.call_tool",
        args=(server, tool, arguments, info.model_dump(exclude_none=True)),
        immutable=True,
        queue=keys.queue(server),
        argsrepr=f"{server}.{tool}",
        kwargsrepr="{}",
    )
