"""What happens to MCP servers, as workers see it: connected, disconnected, failed, tools changed.

Owns the shape that workers publish and agents read (docs/protocol.md).
"""

from operator import not_
from typing import Literal

from pydantic import Field

from tarsy_tasks.models import FrozenModel

__all__ = ["ServerEvent"]


class ServerEvent(FrozenModel):
    """One event of one server in one worker; each worker that serves it has its own.

    Attributes:
        kind: `connected`, `disconnected`, `error` or `tools_changed`.
        at: When the worker noticed it, in seconds since the epoch by the clock of Redis.
        tools: How many tools the server lists; when it was connected.
        sessions_opened: Shared sessions of that worker so far; when it was connected.
        code: An `ErrorCode`, of an error; empty otherwise.
        error: Why there is no session, masked; empty otherwise.
        added: Names of tools, at most 20; and so are the other two.
    """

    server_event: Literal[1] = 1
    kind: Literal["connected", "disconnected", "error", "tools_changed"]
    server: str
    worker: str
    at: float = Field(allow_inf_nan=False)
    tools: int | None = Field(default=None, exclude_if=lambda value: value is None)
    sessions_opened: int | None = Field(default=None, exclude_if=lambda value: value is None)
    code: str = Field(default="", exclude_if=not_)
    error: str = Field(default="", exclude_if=not_)
    added: tuple[str, ...] = Field(default=(), exclude_if=not_)
    removed: tuple[str, ...] = Field(default=(), exclude_if=not_)
    changed: tuple[str, ...] = Field(default=(), exclude_if=not_)
