"""What all MCP pages of Flower have in common, and all of their JSON.

Owns their headers, what their templates can use, and their errors. Flower decides who may see them: its handlers are
the base of these. `?live` returns the part of a page that changes, which the page's script requests repeatedly; with
Tornado's ETag the answer is empty while nothing has changed. During an outage of Redis it is only a notice: the script
keeps the rest of the page.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from flower.views import BaseHandler
from redis.exceptions import RedisError
from tornado.web import HTTPError, authenticated

from tarsy_tasks.dashboard import formats, plots
from tarsy_tasks.dashboard.page_templates import asset_version, escape_visibly
from tarsy_tasks.dashboard.reader import DashboardReader, FleetState
from tarsy_tasks.dashboard.remedies import cut_advice, find_remedy
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.priorities import PRIORITIES
from tarsy_tasks.telemetry.audit import AuditEntry
from tarsy_tasks.telemetry.health_records import HealthStatus

__all__ = ["Data", "NotFoundData", "NotFoundPage", "Page"]

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
_SLASH = "\0"
"""In place of a slash, which Tornado does not escape."""
_PLAIN = (401, 500)
"""Errors that Flower answers: it asks for a password, and shows where it failed."""


class Page(BaseHandler):
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
            self.render_page(template, view=page, state=state, **values)

    def render_page(self, template: str, **values: Any) -> None:
        """Answer with a template; each can use what is given here."""
        self.render(
            f"mcp/{template}",
            may_act=self.may_act,
            escape_visibly=escape_visibly,
            asset=self._asset,
            call_path=self._call_path,
            calls_path=self._calls_path,
            tool_path=self._tool_path,
            remedy=find_remedy,
            cut_advice=cut_advice,
            formats=formats,
            plots=plots,
            statuses=HealthStatus,
            outcomes=Outcome,
            priorities=PRIORITIES,
            outcome_of=_outcome_of,
            **values,
        )

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code in _PLAIN:
            super().write_error(status_code, **kwargs)
            return
        if not hasattr(self, "_current_user"):
            self.current_user = None  # an error page asks for no password
        self.set_status(status_code)
        self.render_page(
            "error.html", view="", state=FleetState(None), status=status_code, message=self._message(kwargs)
        )

    def _message(self, arguments: dict[str, Any]) -> str:
        error = arguments.get("exc_info", (None, None))[1]
        return (error.get_message() if isinstance(error, HTTPError) else None) or self._reason

    def reverse_url(self, name: str, *args: Any) -> str:
        """As Tornado's, which keeps slashes of what it inserts: a button of the call `../x` would do something else."""
        places = (str(each).replace("/", _SLASH) for each in args)
        return super().reverse_url(name, *places).replace(quote(_SLASH), "%2F")

    def _asset(self, name: str) -> str:
        return f"{self.reverse_url('mcp-static', name)}?v={asset_version(name)}"

    def _call_path(self, entry: AuditEntry) -> str:
        path = self.reverse_url("mcp-call", entry.task_id or entry.id)
        return f"{path}?{urlencode({'at': entry.id.partition('-')[0]})}"

    def _calls_path(self, **words: str) -> str:
        """The calls with these words of a filter."""
        return f"{self.reverse_url('mcp-calls')}?{urlencode(words)}"

    def _tool_path(self, server: str, tool: str) -> str:
        return f"{self.reverse_url('mcp-server', server)}#tool-{quote(tool, safe='', errors='replace')}"

    def find(self, snapshot: Snapshot, name: str) -> ServerSnapshot:
        """The server of an address. Raises HTTPError, like all that reads addresses, if it is not valid."""
        if (server := snapshot.servers.get(name)) is None:
            raise HTTPError(404, f"Unknown MCP server '{name}'.")
        return server

    @property
    def may_act(self) -> bool:
        """Whether the page shows buttons."""
        options = self.application.options
        is_open = bool(options.basic_auth or options.auth) or bool(self.unauthenticated_api)
        return is_open and not options.read_only

    def with_outage(self, state: FleetState, error: RedisError) -> FleetState:
        return FleetState(state.snapshot, self.reader.describe_error(error))


def _outcome_of(code: str) -> str:
    """The outcome of an error code, empty for one of a later version."""
    known = ErrorCode.__members__.get(code)
    return known.outcome if known else ""


class Data(Page):
    """JSON, also for errors."""

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        if status_code == 401:
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        self.finish({"error": self._message(kwargs)})

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


class NotFoundPage(Page):
    """Addresses below `/mcp/` that nothing else serves."""

    @authenticated
    def get(self) -> None:
        raise HTTPError(404, "There is no page at this address.")


class NotFoundData(Data):
    """The same below `/mcp/api/`."""

    @authenticated
    def get(self) -> None:
        raise HTTPError(404, "There is nothing at this address.")
