"""What a server asks for while it handles a request, as the SDK's client is to treat it.

Owns who may be asked: a request whose sender can answer says so to the server, and all others do not. In the 2026 era a
question is the answer to a request, and its sender decides what becomes of it (`InputNeeded`); the SDK itself would ask
its callbacks, and hold the session meanwhile. In the handshake era it is a request of the server while the call runs,
which an `ElicitationHandler` answers. Sampling and roots are refused as the SDK does.
"""

from collections.abc import Awaitable, Callable
from typing import Any, cast

from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INVALID_REQUEST,
    ElicitationCapability,
    ElicitRequest,
    ElicitResult,
    ErrorData,
    FormElicitationCapability,
    InputRequiredResult,
    UrlElicitationCapability,
)

from tarsy_tasks.worker.transport.elicitation_handlers import ADDRESSED_HANDLER, ELICITATION_HANDLER, ElicitParams

__all__ = ["InputNeeded", "answer_elicitation", "keep_questions"]

_ELICITATION = ElicitationCapability(form=FormElicitationCapability(), url=UrlElicitationCapability())


class InputNeeded(Exception):
    """The server answers a request of the 2026 era with questions, or only with a state to send the request again."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__(result)
        self.result = result

    @property
    def questions(self) -> dict[str, ElicitParams]:
        """By the keys of the server."""
        asked = self.result.input_requests or {}
        return {key: request.params for key, request in asked.items() if isinstance(request, ElicitRequest)}


def keep_questions(client: Client) -> None:
    """Have a client of the 2026 era raise `InputNeeded`, and declare for each request whether its sender can answer.
    To be called before `shorten_tool_calls`."""
    ours, session = cast("Any", client), cast("Any", client.session)
    stock = session._stamp
    elicitation = _ELICITATION.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def drive(first: Any, _: Callable[..., Awaitable[Any]]) -> Any:
        if not isinstance(first, InputRequiredResult):
            return first
        for key, request in (first.input_requests or {}).items():
            if not isinstance(request, ElicitRequest):
                context = ClientRequestContext(session=session, request_id=key)
                raise MCPError.from_error_data(await session.dispatch_input_request(context, request))
        raise InputNeeded(first)

    def stamp(data: dict[str, Any], options: Any) -> None:
        stock(data, options)
        if ELICITATION_HANDLER.get() is not None:
            meta = data["params"]["_meta"]
            meta[CLIENT_CAPABILITIES_META_KEY] = {**meta[CLIENT_CAPABILITIES_META_KEY], "elicitation": elicitation}

    ours._drive_input_required = drive
    session._stamp = stamp


async def answer_elicitation(_: ClientRequestContext, params: ElicitParams) -> ElicitResult | ErrorData:
    """The `elicitation_callback` of sessions whose callers can answer."""
    asked = ADDRESSED_HANDLER.get()
    if asked is None:
        text = "Several requests run, and it cannot be told which one this question belongs to, so nobody was asked"
        return ErrorData(code=INVALID_REQUEST, message=text)
    return await asked.ask(params)
