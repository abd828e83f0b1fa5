"""The states of the connection to an MCP server, as operators and metrics read them."""

from enum import StrEnum

__all__ = ["State"]


class State(StrEnum):
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    ERROR = "error"
    IDLE = "idle"
    """It starts on demand, and nobody needs it now."""
    PER_AGENT = "per_agent"
    """Each agent has a session of its own, with its own credential, and the worker has none."""
