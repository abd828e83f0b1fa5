"""Health of the MCP servers, for agents, web services and operators.

Owns the functions that read it from Redis; the records and how they are judged are in `telemetry.health_records`.

They block for two round trips to Redis; from asyncio use `asyncio.to_thread`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.telemetry.health_records import HealthStatus, ServerHealth, read_health
from tarsy_tasks.tool_names import build_name_list

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.models import ToolDefinition

__all__ = ["HealthStatus", "ServerHealth", "cached_tools", "is_healthy", "statuses", "warnings"]


def statuses(servers: Iterable[str] | None = None, *, app: "Celery | None" = None) -> dict[str, ServerHealth]:
    """The health of servers.

    Args:
        servers: Their ids; None for all that are configured and enabled for the application.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.

    Raises:
        ValueError: `servers` is a plain string.
        BrokerUnavailable: Redis could not be reached.
        ConfigError: `servers` is None, and the configuration is missing or wrong.
    """
    from redis.exceptions import RedisError

    from tarsy_tasks.celery_app import agent_app, mcp_config_of

    app = app or agent_app()
    names = list(mcp_config_of(app).enabled_servers) if servers is None else build_name_list(servers, "servers")
    try:
        return read_health(app.backend.client, names)
    except (RedisError, OSError) as error:
        raise BrokerUnavailable(f"Redis could not be reached ({error}), so no health is known.") from error


def is_healthy(server: str, *, app: "Celery | None" = None) -> bool:
    """Whether a server is `healthy`; not if it is `degraded` or `unknown`. Raises as `statuses` does."""
    return statuses([server], app=app)[server].healthy


def warnings(servers: Iterable[str] | None = None, *, app: "Celery | None" = None) -> list[str]:
    """A sentence for each server that is not healthy, for a prompt or a page. Raises as `statuses` does."""
    return [health.warning for health in statuses(servers, app=app).values() if health.warning]


def cached_tools(server: str, *, app: "Celery | None" = None) -> "list[ToolDefinition]":
    """The tools of a server as last listed, even while it is unhealthy; empty if it was never listed.

    Raises as `statuses` does. `tarsy_tasks.catalogue.ToolCatalogue` has more ways to look up tools.
    """
    from tarsy_tasks.catalogue import ToolCatalogue

    return ToolCatalogue([server], app=app).tools()
