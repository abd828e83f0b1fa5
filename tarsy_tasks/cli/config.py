"""`tarsy-tasks config`: check the configuration file, print its JSON Schema."""

import os
from pathlib import Path

import click

from tarsy_tasks.cli.output import json_option, notes, print_json
from tarsy_tasks.config import check_secrets, config_schema, find_config_path, load_config, resolve_variables
from tarsy_tasks.errors import ConfigError

__all__ = ["config"]


@click.group()
def config() -> None:
    """Check the configuration of the MCP servers, or print its schema."""


@config.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@json_option
def check(path: Path | None, *, as_json: bool) -> None:
    """Check the configuration at PATH, or the one that a worker would read here.

    Possible secrets are shown as ••••, long ones with their last two characters. Warnings name secrets that are written
    in the file itself.
    """
    path = path or find_config_path()
    found = load_config(path)
    exposures = check_secrets(path)
    unresolved: dict[str, str] = {}
    secrets: dict[str, dict[str, str]] = {}
    for name, server in found.enabled_servers.items():
        try:
            secrets[name] = dict(resolve_variables(server, os.environ).shown)
        except ConfigError as error:
            unresolved[name] = str(error)
    if as_json:
        servers = [
            {"server": name, "transport": each.transport, "enabled": each.enabled, "secrets": secrets.get(name, {})}
            for name, each in found.servers.items()
        ]
        warnings = [{"text": exposure.text, "remedy": exposure.remedy} for exposure in exposures]
        print_json({"path": str(path), "servers": servers, "unresolved": unresolved, "warnings": warnings})
        return
    click.echo(
        f"{path}: {len(found.servers)} servers, {len(found.enabled_servers)} enabled: {', '.join(found.servers)}"
    )
    for name, shown in secrets.items():
        if shown:
            click.echo(f"{name}: {', '.join(f'{place} {value}' for place, value in shown.items())}")
    for problem in unresolved.values():
        notes.print(f"a worker with this environment cannot use it: {problem}", style="yellow")
    for exposure in exposures:
        notes.print(f"warning: {exposure}", style="yellow")


@config.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    print_json(config_schema())
