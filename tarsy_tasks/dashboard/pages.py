"""The MCP pages of Flower, and each page's JSON.

Owns what an address asks for and which template answers it. Who may look is Flower's decision: its handlers are the
base of these. `?live` gives the part of a page that changes, which the page's script asks for again and again; with
Tornado's ETag the answer is empty while nothing has changed. While Redis is away it is a notice only: the script leaves
the rest of the page as it was.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

from flower.views import BaseHandler
from redis.exceptions import RedisError
from tornado.web import HTTPError, authenticated

from tarsy_tasks.dashboard import plots, wording
from tarsy_tasks.dashboard.assets import asset_version
from tarsy_tasks.dashboard.describe import describe_call, describe_calls, describe_server, describe_servers
from tarsy_tasks.dashboard.page_templates import escape_visibly
from tarsy_tasks.dashboard.reader import Call, Dashboard, Look
from tarsy_tasks.dashboard.server_list import build_list
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, AuditPage
from tarsy_tasks.telemetry.health_records import HealthStatus

__all__ = ["CallData", "CallPage", "CallsData", "CallsPage", "ServerData", "ServerPage", "ServersData", "ServersPage"]

_CALLS = 50
_TEXTS = ("server", "tool", "agent_id", "run_id", "call_id")
"""What calls may be chosen by, beside their outcome."""
_SHOWN_CHARS = 50_000
_FAR_S = 10**11
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # Bootstrap's own icons
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


class _Page(BaseHandler):
    """A page, and its script, style and data come from Flower's own address only."""

    def initialize(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "same-origin")
        # What tools answered stays out of caches; the page's script keeps the ETag itself.
        self.set_header("Cache-Control", "no-store")

    def show(self, page: str, look: Look, **values: Any) -> None:
        """Answer with a page, or with `?live` the part of it that changes."""
        template = f"{page}.html"
        if self.get_query_argument("live", None) is not None:
            template = "trouble.html" if look.trouble else f"{page}_live.html"
        self.set_header("Look-Again", f"{self.dashboard.interval_s(page):.1f}")
        with self.dashboard.costing(f"{page} shown"):
            self.render(
                f"mcp/{template}",
                view=page,
                look=look,
                may_act=self._may_act,
                escape_visibly=escape_visibly,
                asset=self._asset,
                call_path=self._call_path,
                say=wording,
                plots=plots,
                statuses=HealthStatus,
                outcomes=Outcome,
                **values,
            )

    def _asset(self, name: str) -> str:
        return f"{self.reverse_url('mcp-static', name)}?v={asset_version(name)}"

    def _call_path(self, entry: AuditEntry) -> str:
        path = self.reverse_url("mcp-call", entry.task_id or entry.id)
        return f"{path}?{urlencode({'at': entry.id.partition('-')[0]})}"

    def find(self, snapshot: Snapshot, name: str) -> ServerSnapshot:
        """The server of an address.

        Raises:
            HTTPError: There is none of that name.
        """
        server = snapshot.servers.get(name)
        if server is None:
            raise HTTPError(404, f"There is no MCP server '{name}'.")
        return server

    @property
    def _may_act(self) -> bool:
        """Whether whoever looks may also ask workers for something."""
        options = self.application.options
        is_open = bool(options.basic_auth or options.auth) or bool(self.unauthenticated_api)
        return is_open and not options.read_only

    def read_filter(self) -> AuditFilter:
        """Which calls an address asks for.

        Raises:
            HTTPError: It says something that means nothing.
        """
        words: dict[str, Any] = {name: word for name in _TEXTS if (word := self.get_query_argument(name, ""))}
        try:
            outcomes = frozenset(Outcome(word) for word in self.get_query_arguments("outcome") if word)
        except ValueError:
            raise HTTPError(400, f"outcome is one of {', '.join(Outcome)}") from None
        return AuditFilter.model_validate(words | ({"outcomes": outcomes} if outcomes else {}))

    def tell_trouble(self, look: Look, error: RedisError) -> Look:
        """What can be shown, if this could not be read."""
        return Look(look.snapshot, self.dashboard.describe_trouble(error))

    async def read_calls(self, wanted: AuditFilter) -> AuditPage:
        """The page of calls that an address asks for.

        Raises:
            HTTPError: It says something that means nothing.
            RedisError: Redis could not be reached.
        """
        try:
            return await self.dashboard.calls(wanted, _CALLS, self.get_query_argument("after", None) or None)
        except ValueError:
            raise HTTPError(400, "after is the place where another page of calls ends") from None

    async def read_call(self, call_id: str) -> Call:
        """The call that an address names. Raises as `read_calls`."""
        places: list[int | None] = []
        for name, unit in (("at", "milliseconds"), ("near", "seconds")):
            word = self.get_query_argument(name, "")
            if word and not (word.isdecimal() and word.isascii() and len(word) < 15):
                raise HTTPError(400, f"{name} is a number of {unit} since the epoch")
            places.append(int(word) if word else None)
        written_ms, near = places
        return await self.dashboard.call(call_id, written_ms, min(near, _FAR_S) if near is not None else None)


class _Data(_Page):
    """JSON, also for what goes wrong."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        message = error.get_message() if isinstance(error, HTTPError) and error.log_message else self._reason
        if status_code == 401:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.finish({"error": message})

    async def look(self) -> Snapshot:
        """All servers, as of about now.

        Raises:
            HTTPError: Redis cannot be read.
        """
        look = await self.dashboard.look()
        if look.snapshot is None or look.trouble:
            raise HTTPError(503, "Redis cannot be read: %s", look.trouble)
        return look.snapshot

    @contextmanager
    def reading(self) -> Generator[None]:
        """Raises HTTPError, if Redis could not be reached meanwhile."""
        try:
            yield
        except RedisError as error:
            raise HTTPError(503, "Redis cannot be read: %s", self.dashboard.describe_trouble(error)) from error


class ServersPage(_Page):
    """All servers."""

    @authenticated
    async def get(self) -> None:
        look = await self.dashboard.look()
        order, status = self.get_query_argument("order", ""), self.get_query_argument("status", "")
        self.show("servers", look, listed=build_list(look.snapshot, order, status))


class ServersData(_Data):
    """All servers, as JSON."""

    @authenticated
    async def get(self) -> None:
        self.write(describe_servers(await self.look()))


class ServerPage(_Page):
    """One server."""

    @authenticated
    async def get(self, name: str) -> None:
        look = await self.dashboard.look()
        if look.snapshot is None:
            self.show("server", look, name=name, server=None)
            return
        server = self.find(look.snapshot, name)
        details = None
        if not look.trouble:
            try:
                details = await self.dashboard.server(server)
            except RedisError as error:
                look = self.tell_trouble(look, error)
        self.show("server", look, name=name, server=server, details=details or self.dashboard.known_details(server))


class ServerData(_Data):
    """One server, as JSON."""

    @authenticated
    async def get(self, name: str) -> None:
        snapshot = await self.look()
        server = self.find(snapshot, name)
        with self.reading():
            self.write(describe_server(snapshot, server, await self.dashboard.server(server)))


class CallsPage(_Page):
    """Calls that have ended."""

    @authenticated
    async def get(self) -> None:
        look, found = await self.dashboard.look(), None
        wanted = self.read_filter()
        if not look.trouble:
            try:
                found = await self.read_calls(wanted)
            except RedisError as error:
                look = self.tell_trouble(look, error)
        self.show(
            "calls",
            look,
            found=found,
            wanted=wanted,
            is_choice=wanted != AuditFilter(),
            older=self._older(found.cursor if found else None),
        )

    def _older(self, cursor: str | None) -> str:
        """The address of the next page, or nothing."""
        if cursor is None:
            return ""
        words = [(name, word) for name in (*_TEXTS, "outcome") for word in self.get_query_arguments(name) if word]
        return f"{self.reverse_url('mcp-calls')}?{urlencode([*words, ('after', cursor)])}"


class CallsData(_Data):
    """Calls that have ended, as JSON."""

    @authenticated
    async def get(self) -> None:
        wanted = self.read_filter()
        await self.look()
        with self.reading():
            found = await self.read_calls(wanted)
        self.write({"calls": describe_calls(found.entries), "after": found.cursor})


class CallPage(_Page):
    """One call."""

    @authenticated
    async def get(self, call_id: str) -> None:
        look, call = await self.dashboard.look(), Call(call_id, None, None)
        if not look.trouble:
            try:
                call = await self.read_call(call_id)
            except RedisError as error:
                look = self.tell_trouble(look, error)
        seen = self.application.events.state.tasks.get(call.task_id)
        self.show("call", look, call=call, seen=seen, shown_chars=_SHOWN_CHARS)


class CallData(_Data):
    """One call, as JSON."""

    @authenticated
    async def get(self, call_id: str) -> None:
        await self.look()
        with self.reading():
            call = await self.read_call(call_id)
        if call.entry is None and call.result is None and not call.failure:
            raise HTTPError(404, "Nothing is known of this call: it has not ended, or it ended long ago.")
        self.write(describe_call(call))
