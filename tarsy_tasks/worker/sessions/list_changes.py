"""That a server has changed its lists, in the 2026 era: it says so over a stream that a client opens for that.

Owns the stream, and opening it again. In the handshake era the notifications come by themselves.
"""

import asyncio
from collections.abc import Callable

from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost, ToolsListChanged

__all__ = ["listen_for_lists"]

_PAUSE_S = 5.0
_METHOD_NOT_FOUND = -32601


async def listen_for_lists(
    client: Client,
    is_lost: Callable[[], bool],
    on_tools: Callable[[], None] | None,
    on_resources: Callable[[], None] | None,
) -> None:
    """Listen until the session is lost, or the server turns out not to know the request.

    Args:
        on_tools: Called when the tools have changed, or may have between two streams; None: nobody wants to know.
        on_resources: The same of the resources.
    """
    may_have_missed = False
    while not is_lost():
        try:
            async with client.listen(
                tools_list_changed=on_tools is not None, resources_list_changed=on_resources is not None
            ) as events:
                if may_have_missed:
                    _call(on_tools)
                    _call(on_resources)
                async for event in events:
                    _call(on_tools if isinstance(event, ToolsListChanged) else on_resources)
        except MCPError as error:
            if error.code == _METHOD_NOT_FOUND:
                return
        except (SubscriptionLost, TimeoutError):
            pass
        may_have_missed = True
        await asyncio.sleep(_PAUSE_S)


def _call(on_change: Callable[[], None] | None) -> None:
    if on_change is not None:
        on_change()
