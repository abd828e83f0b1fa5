"""What a server says about how long an answer may be kept (2026 era)."""

from mcp_types import CacheableResult, Result

__all__ = ["least", "read_fresh_s"]


def read_fresh_s(result: Result) -> float | None:
    """Seconds; 0: not at all; None if the server does not say, as in the handshake era."""
    if isinstance(result, CacheableResult) and "ttl_ms" in result.model_fields_set:
        return result.ttl_ms / 1000
    return None


def least(*seconds: float | None) -> float | None:
    """The least that is said of several; None if nothing is."""
    return min((each for each in seconds if each is not None), default=None)
