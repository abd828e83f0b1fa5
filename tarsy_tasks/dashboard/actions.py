"""The actions behind the buttons of a server's page: requests to the workers that serve it.

Owns the requests and their answers. As for Flower's own actions, they need authentication or Flower's setting that
opens its API, and are refused in read-only mode. On top of Flower's checks of the origin, each needs the token of the
page.
"""

import logging
from collections.abc import Mapping
from typing import Any, cast

from flower.api import BaseApiHandler
from tornado.web import HTTPError, RequestHandler, authenticated

from tarsy_tasks.dashboard.reader import DashboardReader

__all__ = ["ACTIONS", "ServerAction"]

logger = logging.getLogger(__name__)

ACTIONS: Mapping[str, tuple[str, str]] = {
    "reconnect": ("mcp_reconnect", "opened a new session"),
    "refresh": ("mcp_refresh", "listed the tools"),
}
"""By the word in the address: the control command, and the text for a worker that has done it."""
_ANSWER_S = 3.0


class ServerAction(BaseApiHandler):
    """Sends a control command to all workers of a server."""

    def initialize(self, reader: DashboardReader) -> None:
        self._reader = reader

    def check_xsrf_cookie(self) -> None:
        """Also where Flower does not: without authentication and with basic authentication."""
        super().check_xsrf_cookie()
        RequestHandler.check_xsrf_cookie(self)

    @authenticated
    async def post(self, name: str, action: str) -> None:
        if self.application.options.read_only:
            raise HTTPError(403, "Read only mode is enabled")
        state = await self._reader.state()
        if state.snapshot is None or state.outage:
            raise HTTPError(503, "Redis cannot be read, so the workers are unknown")
        server = state.snapshot.servers.get(name)
        if server is None:
            raise HTTPError(404, f"Unknown MCP server '{name}'")
        workers = sorted(record.worker for record in server.records)
        if not workers:
            raise HTTPError(409, f"No worker serves '{name}'")
        command, done = ACTIONS[action]
        logger.info("%s of MCP server %s requested", action, name)
        replies = await self.run_blocking(
            f"mcp.{action}",
            name,
            self.capp.control.broadcast,
            command,
            arguments={"server": name},
            destination=workers,
            reply=True,
            timeout=_ANSWER_S,
            limit=len(workers),
        )
        answers = {worker: answer for reply in replies or () for worker, answer in reply.items()}
        is_done = all("error" not in (answers.get(worker) or {"error": ""}) for worker in workers)
        self.write({"done": is_done, "workers": {worker: _describe(answers.get(worker), done) for worker in workers}})


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
