"""Progress and log notifications of a server, and the running calls that they belong to.

Owns which call that is. Progress says it by its token. A log line does not: it belongs to a call if it came on the
stream of that call's request (Streamable HTTP), or over a session that only this call has. These messages do not pass
the SDK, which has a task for each of them; where nobody listens, they are not even parsed here.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from mcp.shared.dispatcher import coerce_request_id
from mcp_types import RequestId
from pydantic_core import from_json

from tarsy_tasks.worker.transport.flood import LOG_LINE, PROGRESS, Flood, method_of
from tarsy_tasks.worker.transport.message_bounds import LARGE_BYTES

__all__ = ["CallListener", "CallListeners", "with_token"]

_TOKEN = "progressToken"  # noqa: S105 - the name of a field


class CallListener(Protocol):
    """Listens for one request. Its methods run on the session loop, for each notification, and must not raise.

    Attributes:
        limit: The time limit of the request; a listener may move it.
        has_session: Nothing else is sent over the session.
        heard: To be called when what was heard shows that the server is at work.
    """

    limit: asyncio.Timeout | None
    has_session: bool
    heard: Callable[[], None]

    def hear_progress(self, params: Mapping[str, Any]) -> bool:
        """Take the parameters of a progress notification, as the server sent them. Returns whether they count."""
        ...

    def hear_log(self, params: Mapping[str, Any]) -> bool:
        """The same for a log line."""
        ...


class CallListeners:
    """The listeners of one session.

    Args:
        flood: Counts what belongs to no call, cannot be read, or does not count.

    Attributes:
        by_request: Them, by the id of the request.
    """

    def __init__(self, flood: Flood) -> None:
        self.by_request: dict[RequestId, CallListener] = {}
        self._flood = flood

    def add(self, request_id: RequestId, listener: CallListener, limit: asyncio.Timeout) -> None:
        """Have a listener hear what belongs to a request."""
        listener.limit = limit
        self.by_request[coerce_request_id(request_id)] = listener

    def remove(self, request_id: RequestId) -> None:
        """The request has ended; what comes for it now is ignored."""
        listener = self.by_request.pop(coerce_request_id(request_id), None)
        if listener is not None:
            listener.limit = None

    def hear(self, text: bytes, asked: RequestId | None) -> bool:
        """Take a message if it is progress or a log line.

        Args:
            asked: The request on whose stream it came.

        Returns:
            False for any other message, and for one whose keys are in an unusual order.
        """
        method = method_of(text)
        if method not in (PROGRESS, LOG_LINE):
            return False
        try:
            params = from_json(text)["params"] if len(text) <= LARGE_BYTES else None
        except (ValueError, KeyError):
            params = None
        self.take(method, params, asked)
        return True

    def take(self, method: bytes, params: Any, asked: RequestId | None) -> None:
        """Give a notification to the call that it belongs to, if there is one."""
        if not self._give(method, params, asked):
            self._flood.ignored += 1

    def _give(self, method: bytes, params: Any, asked: RequestId | None) -> bool:
        if not isinstance(params, dict):
            return False
        found = cast("dict[str, Any]", params)
        if method == PROGRESS:
            listener = self._by_token(found)
            return listener is not None and listener.hear_progress(found)
        listener = self._by_stream(asked)
        return listener is not None and listener.hear_log(found)

    def _by_token(self, params: Mapping[str, Any]) -> CallListener | None:
        token = params.get(_TOKEN)
        if not isinstance(token, int | str) or isinstance(token, bool):  # True is 1 for Python
            return None
        return self.by_request.get(coerce_request_id(token))

    def _by_stream(self, asked: RequestId | None) -> CallListener | None:
        if asked is not None:
            return self.by_request.get(coerce_request_id(asked))
        return next((each for each in self.by_request.values() if each.has_session), None)


def with_token(params: Mapping[str, Any] | None, request_id: RequestId) -> Mapping[str, Any]:
    """The parameters of a request that asks for progress."""
    params = params or {}
    return {**params, "_meta": {**(params.get("_meta") or {}), _TOKEN: request_id}}
