"""A proxy to an MCP server that hangs up when a test asks it to, as one does whose idle timeout is over."""

import socket

from tests.tcp_proxy import HangUp, TCPProxy

__all__ = ["ClosingProxy"]


class ClosingProxy(TCPProxy):
    """It knows a call of a tool.

    Attributes:
        hangs_up_on_next: Whether it hangs up when the next call of a tool comes, and does not pass it on. A request for
            a stream or a check may come in between.
    """

    hangs_up_on_next = False

    def request(self, data: bytes, client: socket.socket, upstream: socket.socket) -> bytes:
        if self.hangs_up_on_next and b"tools/call" in data:
            self.hangs_up_on_next = False
            raise HangUp
        return data
