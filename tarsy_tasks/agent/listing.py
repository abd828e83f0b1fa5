"""Asking the workers for the tools of each server.

Owns the requests, and the last list of an executor.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from tarsy_tasks.agent.publishing import Publisher
from tarsy_tasks.agent.results import read_listing
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.submitted import SubmittedListing
from tarsy_tasks.agent.tool_list import ToolList, build_tool_list
from tarsy_tasks.agent.waiting import Waits, seconds_until, wait_for
from tarsy_tasks.agent.withdrawal import withdraw_later
from tarsy_tasks.errors import BrokerUnavailable, TarsyTasksError
from tarsy_tasks.models import ToolListing

__all__ = ["ToolLister"]


class ToolLister:
    """Lists the tools of one executor.

    Args:
        selection: The servers to ask, and the tools to show.
        timeout_s: Seconds that the answers may take.
    """

    def __init__(self, publisher: Publisher, selection: Selection, timeout_s: float) -> None:
        self._publisher = publisher
        self._selection = selection
        self._timeout_s = timeout_s
        self._last: ToolList | None = None

    @property
    def last(self) -> ToolList:
        """The last list.

        Raises:
            RuntimeError: There is none yet.
        """
        if self._last is None:
            raise RuntimeError("no tools were listed yet: call list_tools() first")
        return self._last

    def clear(self) -> None:
        """Forget the last list."""
        self._last = None

    def send(self, deadline: float) -> list[SubmittedListing]:
        """Ask workers for the tools of each server.

        Raises:
            BrokerUnavailable: Redis could not be reached before the deadline, or this user may ask for no server.
        """
        sent: list[SubmittedListing] = []
        refused: list[BrokerUnavailable] = []
        for server in self._selection.servers:
            try:
                if refused and not seconds_until(deadline):
                    raise refused[-1]  # Redis was waited for until the deadline
                sent.append(self._send_one(server, deadline))
            except BrokerUnavailable as error:
                failed: Future[ToolListing] = Future()
                failed.set_exception(error)
                sent.append(SubmittedListing("", server, failed))
                refused.append(error)
        if refused and len(refused) == len(sent):
            raise refused[0]
        return sent

    def _send_one(self, server: str, deadline: float) -> SubmittedListing:
        listener = self._publisher.subscribe(deadline)
        task_id = listener.new_id()
        future = listener.expect(task_id, read_listing, deadline)
        try:
            self._publisher.publish(listener, task_id, "tarsy.list_tools", (server,), deadline)
        except BaseException:
            listener.forget(task_id, future)
            raise
        return SubmittedListing(task_id, server, future)

    def wait(self, listings: Sequence[SubmittedListing], deadline: float) -> Waits[ToolList]:
        """Wait for the tools of each server. A server that did not answer is one of `failed_servers`."""
        answers: list[tuple[str, ToolListing | str]] = []
        try:
            for listing in listings:
                try:
                    answers.append((listing.server, (yield from wait_for(listing.future, deadline))))
                except TimeoutError:
                    why = f"no worker answered within {self._timeout_s:g} s; check that a worker serves this server"
                    answers.append((listing.server, why))
                except TarsyTasksError as error:
                    answers.append((listing.server, str(error)))
        finally:
            self.drop(listings)
        self._last = build_tool_list(self._selection, answers)
        return self._last

    def drop(self, listings: Iterable[SubmittedListing]) -> None:
        """Withdraw the requests that were not answered, so that they do not stay in a queue that no worker serves."""
        for listing in listings:
            if listing.id and not listing.future.done():
                self._publisher.listener.forget(listing.id, listing.future)
                withdraw_later(self._publisher.app, listing.id, listing.server)
