"""`tarsy-tasks config`: is the configuration right, and what may stand in it."""

import os
from pathlib import Path

import click

from tarsy_tasks.cli.output import json_option, notes, print_json
from tarsy_tasks.config import config_schema, find_config_path, load_config
from tarsy_tasks.config.variables import resolve_variables
from tarsy_tasks.errors import ConfigError

__all__ = ["config"]


@click.group()
def config() -> None:
    """The configuration of the MCP servers."""


@config.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@json_option
def check(path: Path | None, *, as_json: bool) -> None:
    """Check the configuration at PATH, or the one that a worker would read here."""
    path = path or find_config_path()
    found = load_config(path)
    unresolved: dict[str, str] = {}
    for name, server in found.enabled_servers.items():
        try:
            resolve_variables(server, os.environ)
        except ConfigError as error:
            unresolved[name] = str(error)
    if as_json:
        servers = [
            {"server": server.name, "transport": server.transport, "enabled": server.enabled}
            for server in found.servers.values()
        ]
        print_json({"path": str(path), "servers": servers, "unresolved": unresolved})
        return
    click.echo(
        f"{path}: {len(found.servers)} servers, {len(found.enabled_servers)} enabled: {', '.join(found.servers)}"
    )
    for problem in unresolved.values():
        notes.print(f"in a worker with this environment: {problem}", style="yellow", markup=False)


@config.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    print_json(config_schema())
