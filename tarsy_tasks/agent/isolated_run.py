"""The isolated sessions of one executor: its run, and the servers that have a session for it.

Owns what its messages say of them, and when they are closed: once its calls are answered, for a call that comes later
would open the next session.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from tarsy_tasks.agent.background import start_in_background
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.broker.session_directory import session_name_of
from tarsy_tasks.methods import CLOSE_SESSION
from tarsy_tasks.models import RunSession, ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome

__all__ = ["IsolatedRun", "SessionKind", "build_isolated_run"]

SessionKind = Literal["shared", "run"]
"""Whose sessions an executor uses: those that all share, or those of its run alone."""

_Send = Callable[[str], SubmittedCall]


class IsolatedRun:
    """Args:
    run_id: All executors with it share their sessions; without one, nobody can know the id that is made up.

    All methods run on the background loop.
    """

    def __init__(self, run_id: str | None) -> None:
        self.session = RunSession(run=run_id or uuid4().hex, executor=uuid4().hex)
        self._described = self.session.model_dump()
        self._described_again = {**self._described, "continued": True}
        self._used: set[str] = set()
        """The servers that have answered a call in its session, so that something may be kept there."""
        self._names: dict[str, str] = {}
        self._servers: set[str] = set()
        self._running: set[SubmittedCall] = set()

    def note(self, call: SubmittedCall, principals: Iterable[str]) -> tuple[str, dict[str, Any]]:
        """A call is sent, which opens a session if there is none. Returns the header that names the session, and what
        the message says of it.

        Args:
            principals: As which workers may see its sender.
        """
        if call.tool != CLOSE_SESSION:
            self._servers.add(call.server)
            self._running.add(call)
            call.answered.add_done_callback(partial(self._note_end, call))
        if (name := self._names.get(call.server)) is None:
            name = " ".join(session_name_of(call.server, each, self.session.run) for each in principals)
            self._names[call.server] = name
        return name, self._described_again if call.server in self._used else self._described

    def _note_end(self, call: SubmittedCall, answered: "Future[ToolResult]") -> None:
        self._running.discard(call)
        if answered.cancelled() or answered.exception() is not None:
            return
        answer = answered.result()
        if answer.error_code is ErrorCode.SESSION_LOST:
            self._used.discard(call.server)
        elif answer.outcome in (Outcome.OK, Outcome.TOOL_ERROR):
            self._used.add(call.server)

    async def close(self, send: _Send) -> None:
        """Have the sessions closed. Returns when Redis has that in its queues; at once if calls still run, which come
        first.

        Args:
            send: Sends the wish to a server.
        """
        if self._running:
            start_in_background(self._close_later(send, [call.answered for call in self._running]))
        else:
            await self._close(send)

    async def _close_later(self, send: _Send, running: Iterable["Future[Any]"]) -> None:
        await asyncio.wait([asyncio.wrap_future(each) for each in running])
        await self._close(send)

    async def _close(self, send: _Send) -> None:
        servers, self._servers = self._servers, set()
        self._used.clear()
        sent = [call.sent for call in map(send, servers) if call.sent is not None]
        if sent:  # if Redis cannot be reached, the idle limit closes them
            await asyncio.wait([asyncio.ensure_future(_settled(each)) for each in sent])


async def _settled(future: "Future[None]") -> None:
    await asyncio.gather(asyncio.wrap_future(future), return_exceptions=True)


def build_isolated_run(session: SessionKind, run_id: str | None) -> IsolatedRun | None:
    """None for an executor whose sessions are shared. Raises `ValueError` for any other word."""
    if session not in ("shared", "run"):
        raise ValueError(f"session is {session!r}; it must be shared or run")
    return IsolatedRun(run_id) if session == "run" else None
