"""The connections of Flower to Redis besides its own.

Owns their timeouts: nobody who looks at a page waits longer.
"""

from typing import Any, cast

import redis as redis_py

__all__ = ["build_clients"]


def build_clients(app: Any, timeout_s: float) -> tuple[Any, Any]:
    """Clients of the result backend and of the broker; the same one if both are in one database."""
    results = app.backend.build_client(timeout_s)
    url: str = app.conf.broker_read_url or app.conf.broker_url
    if url == app.conf.result_backend:
        return results, results
    tls: Any = app.conf.broker_use_ssl
    options = cast("dict[str, Any]", tls) if isinstance(tls, dict) else {}
    timeouts = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    return results, redis_py.Redis.from_url(url, **{**options, **timeouts})  # pyright: ignore[reportUnknownMemberType]
