"""Whether the definition of a tool is the approved one, where the server has `pin: block`.

Owns asking Redis, and the rejection. `reporting.tool_changes` writes what a server lists, and approves what is new.
"""

import time

from redis.exceptions import RedisError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.catalogue import parse_approved
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S
from tarsy_tasks.worker.reporting.tool_changes import AUTO_APPROVED_LIMIT

__all__ = ["ApprovedDefinitions"]


class ApprovedDefinitions:
    """Rejects tools whose definition is not the approved one.

    A tool that was not approved is looked up at each call, so an approval takes effect with the next call.

    Args:
        known_s: How long an approved definition is not looked up again, even if another one has been approved.
    """

    def __init__(self, known_s: float = CHECK_INTERVAL_S) -> None:
        self._known_s = known_s
        self._known: dict[str, tuple[str, float]] = {}

    async def require(self, tool: ToolDefinition, redis: AsyncRedisExchange) -> None:
        """Return if the tool is approved, or will be because it is seen for the first time.

        Raises:
            CallError: It is not, or Redis could not be read.
        """
        fingerprint, known_until = self._known.get(tool.name, ("", 0.0))
        if fingerprint == tool.fingerprint and time.monotonic() < known_until:
            return
        try:
            approved, count = await _look_up(tool, redis)
        except (RedisError, OSError) as error:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"Redis could not be read to check whether `{tool.name}` is approved ({error}). The tool did not run. "
                "Try again later.",
            ) from error
        if approved == tool.fingerprint:
            self._known[tool.name] = tool.fingerprint, time.monotonic() + self._known_s
        elif approved is not None or count >= AUTO_APPROVED_LIMIT:
            what = (
                f"The definition of `{tool.name}` changed since it was approved."
                if approved is not None
                else f"`{tool.name}` is new, and its server has too many tools for automatic approval."
            )
            raise CallError(
                ErrorCode.TOOL_CHANGED,
                f"{what} The tool did not run. An operator has to review it (tarsy-tasks tools diff {tool.server}) and "
                f"approve it (tarsy-tasks tools approve {tool.name}). Continue without it until then.",
            )


async def _look_up(tool: ToolDefinition, redis: AsyncRedisExchange) -> tuple[str | None, int]:
    """The approved fingerprint, empty if it cannot be parsed; and how many tools of the server are approved."""
    key = keys.approved_tools_key(tool.server)
    text, count = await redis.execute(("HGET", key, tool.tool), ("HLEN", key))
    if text is None:
        return None, count
    entry = parse_approved({tool.tool.encode(): text})[tool.tool]
    return (entry.fingerprint if entry else ""), count
