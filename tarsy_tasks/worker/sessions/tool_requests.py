"""`tools/call` on the SDK's session, without the models that the SDK builds and dumps for each request.

Owns the way of one request from a name and arguments to the dispatcher, and of its answer to a model. The SDK builds
and dumps a model of the request, and dumps the answer before it validates it a second time: that was a tenth of a call.
The answer is validated twice here, too. Rounds of `input_required`, rejected headers and extensions stay the SDK's.
"""

from typing import Any, cast

from mcp import ClientSession
from mcp.shared.dispatcher import CallOptions
from mcp_types import CallToolResult
from mcp_types.methods import SERVER_RESULTS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

__all__ = ["shorten_tool_calls"]

_METHOD = "tools/call"
_OF_2026 = frozenset({"resultType", "inputRequests", "requestState"})
"""Keys of a result that count in the 2026 era only."""
_PLAIN = frozenset({"content", "structuredContent", "isError", "_meta", "resultType"})
_SURFACES: dict[str, TypeAdapter[Any]] = {
    version: TypeAdapter(cast("Any", model)) for (method, version), model in SERVER_RESULTS.items() if method == _METHOD
}
"""What a result may look like, by the version of MCP."""
_FIRST_ROUND = {
    **dict.fromkeys(("progress_callback", "input_responses", "request_state", "meta")),
    **dict.fromkeys(("allow_input_required", "allow_claimed"), True),
}
"""What the SDK's client adds to a call, unless it has an answer to what the server asked for."""


def shorten_tool_calls(session: ClientSession) -> None:
    """Let a session whose version of MCP is settled send its `tools/call` this way."""
    ours: Any = session
    stock, dispatcher, stamp = ours.call_tool, ours._dispatcher, ours._stamp
    surface = _SURFACES[cast("str", session.protocol_version)]
    results: TypeAdapter[Any] = ours._call_tool_adapter  # with the shapes of extensions
    is_handshake_era = session.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS

    async def call_tool(
        name: str, arguments: dict[str, Any] | None = None, read_timeout_seconds: float | None = None, **further: Any
    ) -> Any:
        if arguments is None or read_timeout_seconds is None or further != _FIRST_ROUND:
            return await stock(name, arguments, read_timeout_seconds, **further)
        params = {"name": name, "arguments": arguments}
        options: CallOptions = {"timeout": read_timeout_seconds}
        stamp({"method": _METHOD, "params": params}, options)
        return read(await dispatcher.send_raw_request(_METHOD, params, options))

    def read(raw: dict[str, Any]) -> Any:
        surface.validate_python(raw, by_name=False)
        if raw.keys() <= _PLAIN and "content" in raw and raw.get("resultType", "complete") == "complete":
            return CallToolResult.model_validate(raw, by_name=False)
        if is_handshake_era:
            raw = {key: value for key, value in raw.items() if key not in _OF_2026}
        return results.validate_python(raw, by_name=False)

    ours.call_tool = call_tool
