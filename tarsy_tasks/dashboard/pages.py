"""The MCP pages of Flower, and each page's JSON.

Owns the meaning of addresses and the template of each page. Flower decides who may see them: its handlers are the base
of these. `?live` returns the part of a page that changes, which the page's script requests repeatedly; with Tornado's
ETag the answer is empty while nothing has changed. During an outage of Redis it is only a notice: the script keeps the
rest of the page.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from flower.views import BaseHandler
from redis.exceptions import RedisError
from tornado.web import HTTPError, authenticated

from tarsy_tasks.dashboard import formats, plots
from tarsy_tasks.dashboard.describe import describe_call, describe_calls, describe_server, describe_servers
from tarsy_tasks.dashboard.page_templates import asset_version, escape_visibly
from tarsy_tasks.dashboard.reader import CallDetails, DashboardReader, FleetState
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, AuditPage
from tarsy_tasks.telemetry.health_records import HealthStatus

__all__ = ["CallData", "CallPage", "CallsData", "CallsPage", "ServerData", "ServerPage", "ServersData", "ServersPage"]

_CALLS = 50
_TEXTS = ("server", "tool", "agent_id", "run_id", "call_id")
"""The fields by which calls can be filtered, besides their outcome."""
_SHOWN_CHARS = 50_000
_FAR_S = 10**11
_SEVERITY = (HealthStatus.UNHEALTHY, HealthStatus.DEGRADED, HealthStatus.UNKNOWN, HealthStatus.HEALTHY)

_ORDERS: Mapping[str, Callable[[ServerSnapshot], tuple[float, ...]]] = {
    "status": lambda server: (_SEVERITY.index(server.status),),
    "name": lambda _: (),
    "calls": lambda server: (-server.call_count,),
    "failures": lambda server: (-server.failure_count,),
    "p95": lambda server: (-(server.duration.quantile_s(0.95) or 0.0),),
    "running": lambda server: (-server.queued, -server.running),
}
"""Sort keys by the word in the address; then by name."""
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
    """A page whose script, style and data come from Flower's own address only."""

    def initialize(self, reader: DashboardReader) -> None:
        self.reader = reader

    def set_default_headers(self) -> None:
        super().set_default_headers()
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("Referrer-Policy", "same-origin")
        # Results of tools must not be cached; the page's script keeps the ETag itself.
        self.set_header("Cache-Control", "no-store")

    def show(self, page: str, state: FleetState, **values: Any) -> None:
        """Answer with a page, or for `?live` with the part of it that changes."""
        template = f"{page}.html"
        if self.get_query_argument("live", None) is not None:
            template = "outage.html" if state.outage else f"{page}_live.html"
        self.set_header("Refresh-After", f"{self.reader.interval_s(page):.1f}")
        with self.reader.measuring_cost(f"{page} shown"):
            self.render(
                f"mcp/{template}",
                view=page,
                state=state,
                may_act=self._may_act,
                escape_visibly=escape_visibly,
                asset=self._asset,
                call_path=self._call_path,
                formats=formats,
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
        """The server of an address. Raises HTTPError, like all that reads addresses, if it is not valid."""
        if (server := snapshot.servers.get(name)) is None:
            raise HTTPError(404, f"Unknown MCP server '{name}'.")
        return server

    @property
    def _may_act(self) -> bool:
        """Whether the page shows buttons."""
        options = self.application.options
        is_open = bool(options.basic_auth or options.auth) or bool(self.unauthenticated_api)
        return is_open and not options.read_only

    def read_filter(self) -> AuditFilter:
        """The filter for calls in an address."""
        words: dict[str, Any] = {name: word for name in _TEXTS if (word := self.get_query_argument(name, ""))}
        try:
            outcomes = frozenset(Outcome(word) for word in self.get_query_arguments("outcome") if word)
        except ValueError:
            raise HTTPError(400, f"outcome is not valid; use one of {', '.join(Outcome)}") from None
        return AuditFilter.model_validate(words | ({"outcomes": outcomes} if outcomes else {}))

    def with_outage(self, state: FleetState, error: RedisError) -> FleetState:
        return FleetState(state.snapshot, self.reader.describe_error(error))

    async def read_calls(self, wanted: AuditFilter) -> AuditPage:
        """The calls that an address asks for. Raises RedisError too."""
        try:
            return await self.reader.calls(wanted, _CALLS, self.get_query_argument("after", None) or None)
        except ValueError:
            raise HTTPError(400, "after is not valid; use the value `after` of another page of calls") from None

    async def read_call(self, call_id: str) -> CallDetails:
        """The call of an address. Raises RedisError too."""
        places: list[int | None] = []
        for name, unit in (("at", "milliseconds"), ("near", "seconds")):
            word = self.get_query_argument(name, "")
            if word and not (word.isdecimal() and word.isascii() and len(word) < 15):
                raise HTTPError(400, f"{name} is not valid; use {unit} since the epoch")
            places.append(int(word) if word else None)
        written_ms, near = places
        return await self.reader.call(call_id, written_ms, min(near, _FAR_S) if near is not None else None)


class _Data(_Page):
    """JSON, also for errors."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None))[1]
        message = error.get_message() if isinstance(error, HTTPError) and error.log_message else self._reason
        if status_code == 401:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.finish({"error": message})

    async def state(self) -> Snapshot:
        """All servers. Raises HTTPError if Redis cannot be read."""
        state = await self.reader.state()
        if state.snapshot is None or state.outage:
            raise HTTPError(503, "Redis cannot be read: %s", state.outage)
        return state.snapshot

    @contextmanager
    def reading(self) -> Generator[None]:
        """Turns errors of Redis into HTTPError."""
        try:
            yield
        except RedisError as error:
            raise HTTPError(503, "Redis cannot be read: %s", self.reader.describe_error(error)) from error


class ServersPage(_Page):
    @authenticated
    async def get(self) -> None:
        state = await self.reader.state()
        order, status = self.get_query_argument("order", ""), self.get_query_argument("status", "")
        self.show("servers", state, listed=_build_list(state.snapshot, order, status))


class ServersData(_Data):
    @authenticated
    async def get(self) -> None:
        self.write(describe_servers(await self.state()))


@dataclass(frozen=True)
class _ServerList:
    """Servers as they are shown.

    Attributes:
        counts: How many servers have each status, selected or not.
    """

    servers: list[ServerSnapshot]
    counts: Mapping[HealthStatus, int]
    order: str
    status: HealthStatus | None
    running: int
    queued: int
    call_count: int
    failure_count: int


def _build_list(snapshot: Snapshot | None, order: str, status: str) -> _ServerList:
    """The list that an address asks for; unknown words are ignored."""
    servers = list(snapshot.servers.values()) if snapshot else []
    chosen = next((each for each in HealthStatus if each == status), None)
    order = order if order in _ORDERS else "status"
    return _ServerList(
        servers=sorted(
            (server for server in servers if chosen in (None, server.status)),
            key=lambda server: (_ORDERS[order](server), server.name.lower()),
        ),
        counts={each: sum(server.status is each for server in servers) for each in HealthStatus},
        order=order,
        status=chosen,
        running=sum(server.running for server in servers),
        queued=sum(server.queued for server in servers),
        call_count=sum(server.call_count for server in servers),
        failure_count=sum(server.failure_count for server in servers),
    )


class ServerPage(_Page):
    @authenticated
    async def get(self, name: str) -> None:
        state = await self.reader.state()
        if state.snapshot is None:
            self.show("server", state, name=name, server=None)
            return
        server = self.find(state.snapshot, name)
        details = None
        if not state.outage:
            try:
                details = await self.reader.server(server)
            except RedisError as error:
                state = self.with_outage(state, error)
        self.show("server", state, name=name, server=server, details=details or self.reader.known_details(server))


class ServerData(_Data):
    @authenticated
    async def get(self, name: str) -> None:
        snapshot = await self.state()
        server = self.find(snapshot, name)
        with self.reading():
            self.write(describe_server(snapshot, server, await self.reader.server(server)))


class CallsPage(_Page):
    @authenticated
    async def get(self) -> None:
        state, found = await self.reader.state(), None
        wanted = self.read_filter()
        if not state.outage:
            try:
                found = await self.read_calls(wanted)
            except RedisError as error:
                state = self.with_outage(state, error)
        older = self._older(found.cursor if found else None)
        self.show("calls", state, found=found, wanted=wanted, is_filtered=wanted != AuditFilter(), older=older)

    def _older(self, cursor: str | None) -> str:
        """The address of the next page, or an empty text."""
        if cursor is None:
            return ""
        words = [(name, word) for name in (*_TEXTS, "outcome") for word in self.get_query_arguments(name) if word]
        return f"{self.reverse_url('mcp-calls')}?{urlencode([*words, ('after', cursor)])}"


class CallsData(_Data):
    @authenticated
    async def get(self) -> None:
        wanted = self.read_filter()
        await self.state()
        with self.reading():
            found = await self.read_calls(wanted)
        self.write({"calls": describe_calls(found.entries), "after": found.cursor})


class CallPage(_Page):
    @authenticated
    async def get(self, call_id: str) -> None:
        state, call = await self.reader.state(), CallDetails(call_id, None, None)
        if not state.outage:
            try:
                call = await self.read_call(call_id)
            except RedisError as error:
                state = self.with_outage(state, error)
        flower_task = self.application.events.state.tasks.get(call.task_id)
        self.show("call", state, call=call, flower_task=flower_task, shown_chars=_SHOWN_CHARS)


class CallData(_Data):
    @authenticated
    async def get(self, call_id: str) -> None:
        await self.state()
        with self.reading():
            call = await self.read_call(call_id)
        if call.entry is None and call.result is None and not call.failure:
            raise HTTPError(404, "Unknown call: it has not ended yet, or its audit entry and result have expired.")
        self.write(describe_call(call))
