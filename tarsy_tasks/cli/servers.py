"""`tarsy-tasks servers`: the configured MCP servers and their state."""

from urllib.parse import urlsplit

import click

import tarsy_tasks
from tarsy_tasks.catalogue import ListedServer, ToolCatalogue
from tarsy_tasks.cli.output import busy, json_option, notes, print_json, print_table
from tarsy_tasks.config import ServerConfig, find_config_path, load_config
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.health import statuses
from tarsy_tasks.telemetry.health_records import ServerHealth

__all__ = ["servers"]


@click.command()
@json_option
def servers(*, as_json: bool) -> None:
    """List the configured MCP servers: transport, protocol, health, tools and workers."""
    config = load_config(find_config_path())
    health: dict[str, ServerHealth] = {}
    listed: dict[str, ListedServer] = {}
    problems: dict[str, None] = {}
    try:
        with busy("reading Redis"):
            health = statuses(config.enabled_servers, app=tarsy_tasks.app)
            listed = ToolCatalogue(config.enabled_servers, app=tarsy_tasks.app).servers()
    except BrokerUnavailable as error:
        notes.print(str(error), style="yellow")
    for server in health.values():
        for record in server.workers.values():
            if record.configuration_error:
                text = f"{record.worker} has not taken the changed configuration: {record.configuration_error}"
                problems[text] = None
    for text in problems:
        notes.print(text, style="red", markup=False)
    found = [_describe(server, health.get(name), listed.get(name)) for name, server in config.servers.items()]
    if as_json:
        print_json(found)
        return
    columns = ("server", "transport", "protocol", "address", "health", "tools", "workers", "name and version", "reason")
    shown = ("server", "transport", "protocol", "where", "health", "tools", "workers", "server_info", "reason")
    rows = [tuple(_cell(each[key]) for key in shown) for each in found]
    print_table(columns, rows, nothing=f"{find_config_path()} names no server")


def _describe(server: ServerConfig, health: ServerHealth | None, listed: ListedServer | None) -> dict[str, object]:
    """`workers`: names of those that report it; `tools`: the number last listed, even while the server is unhealthy."""
    reports = list(health.workers.values()) if health else []
    return {
        "server": server.name,
        "transport": server.transport,
        "where": _where(server),
        "enabled": server.enabled,
        "health": (health.status if health else "unknown") if server.enabled else "disabled",
        "reason": health.reason if health else "",
        "protocol": next((report.protocol for report in reports if report.protocol), None),
        "server_info": next((report.server_info for report in reports if report.server_info), None),
        "tools": len(listed.listing.tools) if listed else None,
        "changed_tools": str(listed.diff) if listed and listed.diff else None,
        "workers": [report.worker for report in reports],
        "details": health.model_dump(mode="json") if health else None,
    }


def _cell(value: object) -> str:
    if isinstance(value, list):
        return str(len(value))  # pyright: ignore[reportUnknownArgumentType]
    return "" if value is None else str(value)


def _where(server: ServerConfig) -> str:
    """The command without arguments, or the URL without user and query: those may hold secrets."""
    if server.url is None:
        return server.command or ""
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
