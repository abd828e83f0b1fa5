"""The pages of calls and of one call, and their JSON.

Owns the meaning of their addresses; the words of a filter are in `call_filter`.
"""

import time
from typing import Any
from urllib.parse import urlencode

from redis.exceptions import RedisError
from tornado.web import HTTPError, authenticated

from tarsy_tasks.dashboard.call_filter import GROUPS, SPANS_S, CallQuery, read_call_query
from tarsy_tasks.dashboard.describe import describe_call, describe_calls
from tarsy_tasks.dashboard.page_handlers import Data, Page
from tarsy_tasks.dashboard.reader import CallDetails, FleetState
from tarsy_tasks.telemetry.audit import AuditFilter, AuditPage

__all__ = ["CallData", "CallPage", "CallsData", "CallsPage"]

_CALLS = 50
_SHOWN_CHARS = 50_000
_FAR_S = 10**11


class _Calls(Page):
    """Reads the addresses of both pages. What is not valid raises HTTPError."""

    def read_query(self, state: FleetState) -> CallQuery:
        """The filter in the address."""
        now = state.snapshot.at if state.snapshot else time.time()
        try:
            return read_call_query(self.get_query_arguments, now)
        except ValueError as error:
            raise HTTPError(400, str(error)) from None

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


class CallsPage(_Calls):
    @authenticated
    async def get(self) -> None:
        state, found = await self.reader.state(), None
        query = self.read_query(state)
        if not state.outage:
            try:
                found = await self.read_calls(query.wanted)
            except RedisError as error:
                state = self.with_outage(state, error)
        cursor = found.cursor if found else None
        self.show(
            "calls",
            state,
            found=found,
            query=query,
            groups=GROUPS,
            spans=SPANS_S,
            path=self._path,
            workers=_workers(state),
            is_filtered=bool(query.words),
            older=self._path([*query.words, ("after", cursor)]) if cursor else "",
            is_latest=not self.get_query_argument("after", ""),
        )

    def _path(self, words: Any) -> str:
        return f"{self.reverse_url('mcp-calls')}?{urlencode(words)}"


def _workers(state: FleetState) -> list[str]:
    """The workers that report on any server."""
    servers = state.snapshot.servers.values() if state.snapshot else ()
    return sorted({record.worker for server in servers for record in server.records})


class CallsData(_Calls, Data):
    @authenticated
    async def get(self) -> None:
        query = self.read_query(FleetState(await self.state()))
        with self.reading():
            found = await self.read_calls(query.wanted)
        self.write({"calls": describe_calls(found.entries), "after": found.cursor})


class CallPage(_Calls):
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


class CallData(_Calls, Data):
    @authenticated
    async def get(self, call_id: str) -> None:
        await self.state()
        with self.reading():
            call = await self.read_call(call_id)
        if call.entry is None and call.result is None and call.running is None and not call.failure:
            raise HTTPError(404, "Unknown call: it waits in its queue, or its audit entry and result have expired.")
        self.write(describe_call(call))
