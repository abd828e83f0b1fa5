"""Commands of operators for a running worker: `celery -A tarsy_tasks inspect mcp_sessions`, `control mcp_reconnect …`.

Owns the commands and the shape of their answers. They run in the consumer's thread, which takes every message of the
worker: none waits for a server longer than half a second, and not at all for the same command again while that is in
progress. What takes longer continues, and `mcp_sessions` shows the result.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, Any

from celery.worker.control import Panel

from tarsy_tasks.broker import keys, parked_calls, parked_views
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.input_rounds import Answered, InputRound, give_answers
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.catalogue import approve_tools, read_catalogue
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.input_answers import UnfitAnswerError, load_asked, read_answers
from tarsy_tasks.questions import INPUT_REQUIRED
from tarsy_tasks.telemetry.decision_texts import DONE, LONGEST_NAME, LONGEST_WHY

if TYPE_CHECKING:
    from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["register"]

_WAIT_S = 0.5
_ANSWER_S = 2.0
"""Flower waits for 3 s."""
_NO_NAME = "name the person who decides"

Reply = dict[str, Any]


class _Refused(Exception):
    """A command is not executed; the text says why."""


def register() -> None:
    """Register the commands, in a worker or in the command line."""
    one_server: dict[str, Any] = {"type": "control", "args": [("server", str)], "signature": "SERVER"}
    Panel.register(mcp_sessions, type="inspect")
    Panel.register(mcp_reload, type="control")
    Panel.register(mcp_reconnect, **one_server)
    Panel.register(mcp_disconnect, **one_server)
    Panel.register(mcp_refresh, **one_server)
    Panel.register(active_queues, type="inspect")
    Panel.register(mcp_decide, type="control", visible=False)  # for the dashboard; people have `approve` and `deny`
    Panel.register(mcp_answer, type="control", visible=False)  # the same; people have `answer`
    logging.getLogger("kombu.pidbox").addFilter(_hide_answers)
    Panel.register(mcp_approve, type="control", args=[("server", str), ("listing", str)], signature="SERVER LISTING")


def active_queues(state: Any, **_: Any) -> list[dict[str, Any]]:
    """List the task queues a worker is currently consuming from."""
    # As Celery's. Of a server, the queues of all agents come with its own: of these there may be any number.
    consumer = state.consumer.task_consumer
    queues: list[dict[str, Any]] = [dict(queue.as_dict(recurse=True)) for queue in consumer.queues] if consumer else []
    for queue in queues:
        server = keys.server_of_queue(queue["name"])
        if server is not None and queue["name"] == keys.queue(server):
            queue["agents"] = keys.agent_queue(server, "*") if state.consumer.pool.fetcher.serves_agents else None
    return queues


def mcp_sessions(state: Any, **_: Any) -> Reply:
    """Sessions with the MCP servers: state, protocol, server version, tools, calls in flight, last error."""
    return {server: _describe(connection) for server, connection in _connections(state).items()}


def mcp_reload(state: Any, **_: Any) -> Reply:
    """Take the configuration and the policy as their files have them now."""
    state.consumer.configuration_reload.ask()
    return {"ok": {"configuration": state.consumer.pool.context.taken.version}}


def mcp_reconnect(state: Any, server: str = "", **_: Any) -> Reply:
    """Open a new session with an MCP server; the old one is closed when its calls have ended."""

    async def reconnect(connection: "ServerConnection") -> Reply:
        await connection.reconnect()
        return {}

    return _run(state, server, reconnect)


def mcp_disconnect(state: Any, server: str = "", **_: Any) -> Reply:
    """Close the session with an MCP server; no new one is opened until mcp_reconnect."""

    async def disconnect(connection: "ServerConnection") -> Reply:
        await connection.disconnect()
        return {}

    return _run(state, server, disconnect)


def mcp_refresh(state: Any, server: str = "", **_: Any) -> Reply:
    """List the tools of an MCP server again, now."""

    async def refresh(connection: "ServerConnection") -> Reply:
        before, now = await connection.refresh()
        return {
            "added": sorted(now.keys() - before.keys()),
            "removed": sorted(before.keys() - now.keys()),
            "changed": sorted(name for name in now.keys() & before.keys() if now[name] != before[name]),
        }

    return _run(state, server, refresh)


def mcp_approve(state: Any, server: str = "", listing: str = "", **_: Any) -> Reply:
    """Approve the tools of an MCP server, if it still lists what `tarsy-tasks tools diff` or the dashboard showed."""

    async def approve(connection: "ServerConnection") -> Reply:
        return await asyncio.to_thread(_approve, state.app.backend.client, connection.server.name, listing)

    return _run(state, server, approve)


def _approve(redis: Any, server: str, digest: str) -> Reply:
    listed = read_catalogue(redis, [server]).get(server)
    if listed is None:
        raise _Refused(f"the tools of MCP server `{server}` have not been listed yet")
    if listed.digest != digest:
        raise _Refused(f"MCP server `{server}` no longer lists the tools that were shown; look at them again")
    return {what: sorted(tools) for what, tools in approve_tools(redis, listed)}


def mcp_decide(
    state: Any, call: str = "", digest: str = "", approve: bool = False, by: str = "", why: str = "", **_: Any
) -> Reply:
    """Approve or deny a parked call as the dashboard showed it, on behalf of the person who is named."""
    if not (_is_name(by) and isinstance(why, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
        return {"error": _NO_NAME}
    try:
        with _redis(state) as redis:
            view = parked_views.load(redis, call)
            if view is None or view.digest != digest:
                return {"ok": {"done": False, "result": Decided.UNKNOWN if view is None else Decided.CHANGED}}
            by, why = _clean_name(by), " ".join(why.split())[:LONGEST_WHY]
            decided = parked_calls.decide(redis, view, is_approved=approve is True, by=by, why=why)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"ok": {"done": decided in DONE, "result": decided}}


def mcp_answer(state: Any, call: str = "", digest: str = "", answers: Any = None, by: str = "", **_: Any) -> Reply:
    """Answer what the server of a parked call asks, as the dashboard showed it, on behalf of the person who is named.
    What does not fit is not passed on, and `unfit` of the reply says why."""
    if not _is_name(by):
        return {"error": _NO_NAME}
    try:
        with _redis(state) as redis:
            view = parked_views.load(redis, call)
            kept = InputRound.read(redis.hmget(keys.input_key(call), *InputRound.FIELDS))
            if view is None or view.reason != INPUT_REQUIRED or kept is None:
                return {"ok": {"done": False, "result": Answered.UNKNOWN}}
            if view.digest != digest:
                return {"ok": {"done": False, "result": Answered.CHANGED}}
            connection = _connections(state).get(str(view.about.get("server")))
            if connection is None:
                return {"error": "this worker does not serve the MCP server of the call"}
            reading = connection.long_work.run(read_answers, load_asked(kept.asked), answers, allowed_s=inf)
            try:
                sent = state.consumer.pool.loop.submit(reading).result(_ANSWER_S)
            except TimeoutError:
                return {"error": "the answers could not be checked in time; answer with `tarsy-tasks answer`"}
            except UnfitAnswerError as error:
                return {"ok": {"done": False, "unfit": connection.masker.mask(str(error))}}
            text = json.dumps(sent, ensure_ascii=False, separators=(",", ":"))
            giving = give_answers.command(tag=call, digest=digest, answers=text, by=_clean_name(by))
            answered = Answered(as_text(redis.execute_command(*giving)))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"ok": {"done": answered is Answered.ANSWERED, "result": answered}}


def _hide_answers(record: logging.LogRecord) -> bool:
    """With the level DEBUG, kombu logs each command with its arguments: answers of people are in no log."""
    return f"{mcp_answer.__name__}(" not in record.getMessage()


def _is_name(by: Any) -> bool:
    return isinstance(by, str) and bool(by.strip())


def _clean_name(by: str) -> str:
    return " ".join(by.split())[:LONGEST_NAME]


@contextmanager
def _redis(state: Any) -> Generator[Any]:
    """A client of the broker."""
    with state.app.pool.acquire(block=True) as connection:
        yield connection.default_channel.client


def _run(state: Any, server: Any, act: Callable[["ServerConnection"], Coroutine[Any, Any, Reply]]) -> Reply:
    connections = _connections(state)
    connection = connections.get(server) if isinstance(server, str) else None
    if connection is None:
        served = ", ".join(connections) or "none"
        what = f"this worker has no MCP server `{server!s:.100}`" if server else "name an MCP server"
        return {"error": f"{what}; it serves: {served}"}
    latest = state.consumer.pool.commands.get(server)
    if latest is not None and latest[0] == act.__name__ and not latest[1].done():
        return {"ok": {"done": False, **_describe(connection)}}
    future = state.consumer.pool.loop.submit(act(connection))
    state.consumer.pool.commands[server] = act.__name__, future
    try:
        found = future.result(_WAIT_S)
    except TimeoutError:
        return {"ok": {"done": False, **_describe(connection)}}
    except NoSessionError as error:
        return {"error": connection.masker.mask(error.operator_text)}
    except _Refused as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": connection.masker.mask(f"{type(error).__name__}: {error}")}
    return {"ok": {"done": True, **found, **_describe(connection)}}


def _connections(state: Any) -> "Mapping[str, ServerConnection]":
    return state.consumer.pool.connections


def _describe(connection: "ServerConnection") -> Reply:
    session, listed, mask = connection.session, connection.listed, connection.masker.mask
    of_agents = [] if connection.agents is None else connection.agents.connections()
    return {
        "state": str(connection.state),
        "held": connection.is_disconnected_by_operator,
        "transport": connection.server.transport,
        "protocol": session.protocol if session else None,
        "era": session.era if session else None,
        "server_version": mask(session.server_info) if session else None,
        "tools": len(listed.tools) if listed else None,
        "sessions_opened": connection.sessions_opened,
        "in_flight": connection.in_flight,
        "watched": connection.watched + sum(each.watched for each in of_agents),
        "agents": None if connection.agents is None else len(connection.agents),
        "last_error": mask(connection.last_error.operator_text) if connection.last_error else None,
    }
