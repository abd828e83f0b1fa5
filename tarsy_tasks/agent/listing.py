"""Asking the workers for the tools of each server.

Owns the requests, and the last list of an executor.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from tarsy_tasks.agent.publishing import Publisher
from tarsy_tasks.agent.results import read_listing
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import Wait, seconds_until
from tarsy_tasks.agent.withdrawal import withdraw, withdrawal_threads
from tarsy_tasks.errors import BrokerUnavailable, TarsyTasksError
from tarsy_tasks.models import ToolDefinition, ToolListing

__all__ = ["ListRequest", "ToolLister"]


class ListRequest(NamedTuple):
    """A request for the tools of one server. `future` resolves to the listing, or raises `TarsyTasksError`."""

    server: str
    task_id: str
    future: "Future[ToolListing]"


@dataclass(eq=False)
class ToolLister:
    """Lists the tools of one executor; `last` is the last list."""

    publisher: Publisher
    selection: Selection
    timeout_s: float
    last: ToolList | None = None

    def send(self, deadline: float) -> list[ListRequest]:
        """Ask workers for the tools of each server. Raises if this user can ask for no server."""
        requests: list[ListRequest] = []
        refused: list[BrokerUnavailable] = []
        for server in self.selection.servers:
            try:
                if refused and not seconds_until(deadline):
                    raise refused[-1]  # Redis was waited for until the deadline
                listener = self.publisher.subscribe(deadline)
                task_id = listener.new_id()
                task = (listener, task_id, "tarsy.list_tools", (server,), read_listing, deadline)
                requests.append(ListRequest(server, task_id, self.publisher.publish(*task)))
            except BrokerUnavailable as error:
                failed: Future[ToolListing] = Future()
                failed.set_exception(error)
                requests.append(ListRequest(server, "", failed))
                refused.append(error)
        if refused and len(refused) == len(requests):
            raise refused[0]
        return requests

    async def wait(self, requests: Sequence[ListRequest], deadline: float, wait: Wait) -> ToolList:
        """Wait for the tools of each server. A server that did not answer is one of `failed_servers`."""
        tools: list[ToolDefinition] = []
        instructions: dict[str, str] = {}
        failed: dict[str, str] = {}
        try:
            for server, _, future in requests:
                try:
                    listing = await wait(future, deadline)
                except TimeoutError:
                    why = f"no worker answered within {self.timeout_s:g} s; check that a worker serves this server"
                    failed[server] = why
                    continue
                except TarsyTasksError as error:
                    failed[server] = str(error)
                    continue
                tools += [tool for tool in listing.tools if self.selection.includes(server, tool.tool)]
                if listing.instructions:
                    instructions[server] = listing.instructions
                selected = self.selection.tool_filter.get(server, frozenset())
                if missing := selected - {tool.tool for tool in listing.tools}:
                    failed[server] = f"it has no tool {', '.join(sorted(missing))}"
        finally:
            self.drop(requests)
        self.last = ToolList(tools, dict(sorted(failed.items())), instructions)
        return self.last

    def drop(self, requests: Iterable[ListRequest]) -> None:
        """Withdraw the requests that were not answered, so that they do not stay in a queue that no worker serves."""
        app = self.publisher.app
        for server, task_id, future in requests:
            if task_id and not future.done():
                self.publisher.listener.forget(task_id, future)
                withdrawal_threads(app).submit(withdraw, app, task_id, server)
