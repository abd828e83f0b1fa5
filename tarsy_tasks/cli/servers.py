"""`tarsy-tasks servers`: what is configured, and how the last checks went."""

from datetime import UTC, datetime
from urllib.parse import urlsplit

import click
from redis.exceptions import RedisError

import tarsy_tasks
from tarsy_tasks.cli.output import json_option, notes, print_json, print_table
from tarsy_tasks.config import ServerConfig, find_config_path, load_config
from tarsy_tasks.health import HealthRecord, read_health

__all__ = ["servers"]


@click.command()
@json_option
def servers(*, as_json: bool) -> None:
    """List the configured MCP servers with their health."""
    config = load_config(find_config_path())
    try:
        health = read_health(tarsy_tasks.app.backend.client, config.servers)
    except RedisError as error:
        notes.print(f"Redis could not be reached, so the health is not known: {error}", style="yellow", markup=False)
        health = {}
    if as_json:
        print_json([_describe(server, health.get(name)) for name, server in config.servers.items()])
        return
    print_table(
        ("server", "transport", "where", "health", "tools", "checked", "error"),
        [_row(server, health.get(name)) for name, server in config.servers.items()],
    )


def _describe(server: ServerConfig, record: HealthRecord | None) -> dict[str, object]:
    return {
        "server": server.name,
        "transport": server.transport,
        "where": _where(server),
        "enabled": server.enabled,
        "health": _health(server, record),
        "record": record.model_dump(mode="json") if record else None,
    }


def _row(server: ServerConfig, record: HealthRecord | None) -> tuple[str, ...]:
    checked = datetime.fromtimestamp(record.checked_at, UTC).astimezone().strftime("%H:%M:%S") if record else ""
    tools = str(record.tool_count) if record and record.tool_count is not None else ""
    return (
        server.name,
        server.transport,
        _where(server),
        _health(server, record),
        tools,
        checked,
        (record.error or "") if record else "",
    )


def _health(server: ServerConfig, record: HealthRecord | None) -> str:
    if not server.enabled:
        return "disabled"
    if record is None:
        return "unknown"
    return "healthy" if record.healthy else "unhealthy"


def _where(server: ServerConfig) -> str:
    """The command, or the URL without what may be secret in it; never arguments."""
    if server.url is None:
        return server.command or ""
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
