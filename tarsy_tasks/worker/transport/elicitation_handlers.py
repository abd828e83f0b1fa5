"""Which request of ours a question of the server belongs to.

Owns the two context variables in which that travels, past the SDK. In the 2026 era a question is the answer to a
request. In the handshake era it is a request of the server: over Streamable HTTP it comes on the stream of the request
that it belongs to; over other transports it can be told only while a single request is answered that may be asked.
"""

from contextvars import ContextVar
from typing import Protocol

from mcp.shared.dispatcher import coerce_request_id
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams, ElicitResult, ErrorData, RequestId

__all__ = ["ADDRESSED_HANDLER", "ELICITATION_HANDLER", "ElicitParams", "ElicitationHandler", "ElicitationHandlers"]

ElicitParams = ElicitRequestFormParams | ElicitRequestURLParams


class ElicitationHandler(Protocol):
    """Who sends a request, and can answer what the server asks meanwhile."""

    async def ask(self, params: ElicitParams) -> ElicitResult | ErrorData:
        """The answer to a question, in the handshake era."""
        ...

    def note_ambiguous(self) -> None:
        """A question may have been about this request, or about another one."""
        ...


ELICITATION_HANDLER: ContextVar[ElicitationHandler | None] = ContextVar("handler", default=None)
"""Who sends the requests of this context; None: it answers nothing."""
ADDRESSED_HANDLER: ContextVar[ElicitationHandler | None] = ContextVar("asked", default=None)
"""Whom the request of a server concerns that is answered in this context; None: nobody can say."""


class ElicitationHandlers:
    """The handlers of the running requests of one session."""

    def __init__(self) -> None:
        self._by_request: dict[RequestId, ElicitationHandler] = {}

    def add(self, request_id: RequestId, handler: ElicitationHandler) -> None:
        self._by_request[request_id] = handler

    def remove(self, request_id: RequestId) -> None:
        self._by_request.pop(request_id, None)

    def find(self, stream: RequestId | None) -> ElicitationHandler | None:
        """Whom a question concerns; `stream` is the request on whose stream it came, if it came on one."""
        if stream is not None:
            return self._by_request.get(coerce_request_id(stream))
        if len(self._by_request) == 1:
            return next(iter(self._by_request.values()))
        for handler in self._by_request.values():
            handler.note_ambiguous()
        return None
