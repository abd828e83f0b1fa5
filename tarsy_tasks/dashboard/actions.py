"""What operators can ask the workers of a server for, with a button on its page.

Owns the requests and what is answered. They go the way of Flower's own: authentication is needed, or Flower's setting
that opens its API; nothing in read-only mode. On top of Flower's checks of the request's origin, each needs the token
that the page carries.
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
"""By the word in the address: the workers' command, and what they have done afterwards."""
_ANSWER_S = 3.0


class ServerAction(BaseApiHandler):
    """Asks all workers of a server to do something."""

    def initialize(self, reader: DashboardReader) -> None:
        self._reader = reader

    def check_xsrf_cookie(self) -> None:
        """Flower leaves the token out where nobody signs in, and with basic authentication."""
        super().check_xsrf_cookie()
        RequestHandler.check_xsrf_cookie(self)

    @authenticated
    async def post(self, name: str, action: str) -> None:
        if self.application.options.read_only:
            raise HTTPError(403, "Read only mode is enabled")
        state = await self._reader.state()
        if state.snapshot is None or state.outage:
            raise HTTPError(503, "Redis cannot be read, so no worker can be asked")
        server = state.snapshot.servers.get(name)
        if server is None:
            raise HTTPError(404, f"There is no MCP server '{name}'")
        workers = sorted(record.worker for record in server.records)
        if not workers:
            raise HTTPError(409, f"No worker serves '{name}'")
        command, done = ACTIONS[action]
        logger.info("%s of MCP server %s was asked for", action, name)
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
        found = {worker: answer for reply in replies or () for worker, answer in reply.items()}
        told = {worker: _tell(found.get(worker), done) for worker in workers}
        is_done = all("error" not in (found.get(worker) or {"error": ""}) for worker in workers)
        self.write({"done": is_done, "workers": told})


def _tell(answer: Any, done: str) -> str:
    """A worker's answer as a sentence."""
    if not isinstance(answer, dict):
        return f"did not answer within {_ANSWER_S:g} s"
    said = cast("dict[str, Any]", answer)
    if not isinstance(said.get("ok"), dict):
        return str(said.get("error"))
    told = cast("dict[str, Any]", said["ok"])
    if not told.get("done"):
        return "is at it"
    changes = [f"{len(told[what])} {what}" for what in ("added", "removed", "changed") if told.get(what)]
    return f"{done}: {', '.join(changes)}" if changes else done
