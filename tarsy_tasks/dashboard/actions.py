"""The actions behind the buttons: requests to the workers that serve a server, or that run a call.

Owns the requests and their answers. As for Flower's own actions, they need authentication or Flower's setting that
opens its API, and are refused in read-only mode. Each has to come from Flower's own pages (`access`).
"""

import logging
from collections.abc import Mapping
from typing import Any, cast

from flower.api import BaseApiHandler
from redis.exceptions import RedisError
from tornado.web import HTTPError, authenticated

from tarsy_tasks.dashboard.access import OwnRequests
from tarsy_tasks.dashboard.reader import DashboardReader

__all__ = ["ACTIONS", "CancelAction", "ServerAction"]

logger = logging.getLogger(__name__)

ACTIONS: Mapping[str, tuple[str, str]] = {
    "reconnect": ("mcp_reconnect", "opened a new session"),
    "refresh": ("mcp_refresh", "listed the tools"),
    "approve": ("mcp_approve", "approved"),
}
"""By the word in the address: the control command, and the text for a worker that has done it."""
_ONCE = ("approve",)
"""What one worker does for all."""
_ANSWER_S = 3.0


class _Action(OwnRequests, BaseApiHandler):
    """What all actions have in common."""

    def initialize(self, reader: DashboardReader) -> None:
        self.reader = reader

    def refuse_read_only(self) -> None:
        if self.application.options.read_only:
            raise HTTPError(403, "Read only mode is enabled")

    async def ask(self, what: str, workers: list[str], send: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The answers of these workers to a command of Celery's remote control, by worker."""
        limits = {"destination": workers, "reply": True, "timeout": _ANSWER_S, "limit": len(workers)}
        replies = await self.run_blocking("mcp", what, send, *arguments, **options, **limits)
        return {worker: answer for reply in replies or () for worker, answer in reply.items()}


class ServerAction(_Action):
    """Sends a control command to the workers of a server."""

    @authenticated
    async def post(self, name: str, action: str) -> None:
        self.refuse_read_only()
        state = await self.reader.state()
        if state.snapshot is None or state.outage:
            raise HTTPError(503, "Redis cannot be read, so the workers are unknown")
        server = state.snapshot.servers.get(name)
        if server is None:
            raise HTTPError(404, f"Unknown MCP server '{name}'")
        workers = sorted(record.worker for record in server.records)[: 1 if action in _ONCE else None]
        if not workers:
            raise HTTPError(409, f"No worker serves '{name}'")
        command, done = ACTIONS[action]
        arguments = {"server": name}
        if action == "approve":
            arguments["listing"] = self.get_query_argument("listing", "")
        logger.info("%s of MCP server %s requested", action, name)
        answers = await self.ask(name, workers, self.capp.control.broadcast, command, arguments=arguments)
        is_done = all("error" not in (answers.get(worker) or {"error": ""}) for worker in workers)
        self.write({"done": is_done, "workers": {worker: _describe(answers.get(worker), done) for worker in workers}})


class CancelAction(_Action):
    """Has the worker that runs a call cancel it; the MCP server is notified, and the caller is answered `cancelled`."""

    @authenticated
    async def post(self, call_id: str) -> None:
        self.refuse_read_only()
        try:
            running = await self.reader.running_call(call_id)
        except (RedisError, OSError) as error:
            raise HTTPError(503, "Redis cannot be read, so the worker of this call is unknown") from error
        if running is None:
            raise HTTPError(404, "This call is not running")
        logger.info("cancel of call %s requested", running.task_id)
        revoke = self.capp.control.revoke
        answers = await self.ask(call_id, [running.worker], revoke, running.task_id, terminate=True)
        answer = answers.get(running.worker)
        done = isinstance(answer, dict) and "ok" in answer
        text = "cancels the call" if done else _describe(answer, "")
        self.write({"done": done, "workers": {running.worker: text}})


def _describe(answer: Any, done: str) -> str:
    """A worker's answer as a phrase."""
    if not isinstance(answer, dict):
        return f"did not answer within {_ANSWER_S:g} s"
    reply = cast("dict[str, Any]", answer)
    if not isinstance(reply.get("ok"), dict):
        return str(reply.get("error"))
    result = cast("dict[str, Any]", reply["ok"])
    if not result.get("done"):
        return "in progress"
    changes = [f"{len(result[what])} {what}" for what in ("added", "removed", "changed") if result.get(what)]
    return f"{done}: {', '.join(changes)}" if changes else done
