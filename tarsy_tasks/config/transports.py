"""How the transport of a server is spelled, and which one a URL means.

Owns the spellings. Which other keys go with a transport is in `servers`.
"""

import re

from pydantic import JsonValue

__all__ = ["TRANSPORTS", "read_transport", "transport_of_url"]

TRANSPORTS = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamableHttp": "http",
    "streamable": "http",
    "sse": "sse",
    "local": "stdio",
    "remote": "",
}
"""Spelling → transport; empty: it follows from the URL. Case, `-` and `_` do not count."""
_FOLDED = {spelling.replace("-", "").replace("_", "").lower(): name for spelling, name in TRANSPORTS.items()}


def read_transport(spelling: JsonValue) -> str | None:
    """The transport that is meant; None if there is none of that name."""
    return _FOLDED.get(re.sub("[-_ ]", "", spelling).lower()) if isinstance(spelling, str) else None


def transport_of_url(url: JsonValue) -> str:
    """The transport, as far as the URL says: for SSE, servers by convention have an address of its own."""
    if url is None:
        return "stdio"
    path = re.split(r"[?#]", url, maxsplit=1)[0] if isinstance(url, str) else ""
    # A reference may end with it, as its default.
    return "sse" if path.rstrip("/}").lower().endswith("/sse") else "http"
