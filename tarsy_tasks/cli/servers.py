"""`tarsy-tasks servers`: the configured MCP servers and their state, and changing them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import click

import tarsy_tasks
from tarsy_tasks.catalogue import ListedServer, ToolCatalogue
from tarsy_tasks.cli import UNAVAILABLE
from tarsy_tasks.cli.configuration_record import export, history, publish
from tarsy_tasks.cli.known_names import complete_server
from tarsy_tasks.cli.new_server import new
from tarsy_tasks.cli.output import busy, json_option, notes, print_json, print_table
from tarsy_tasks.cli.server_sources import SourcedEntry, build_from_preset, build_from_server_json
from tarsy_tasks.config import ServerConfig, find_config_path, load_config
from tarsy_tasks.config.presets import PRESETS
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.health import statuses
from tarsy_tasks.operators import Operator
from tarsy_tasks.telemetry.health_records import ServerHealth

__all__ = ["servers"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_digest_option = click.option(
    "--digest", help="Of the file as you have seen it; the change is refused if somebody has changed it since."
)


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def servers(ctx: click.Context, *, as_json: bool) -> None:
    """List the configured MCP servers (transport, protocol, health, tools, workers), or change them."""
    if ctx.invoked_subcommand is None:
        _list(as_json=as_json)


@servers.command()
@click.argument("name")
@click.argument("command", nargs=-1)
@click.option("--url", help="Address of a server over HTTP; otherwise COMMAND starts it.")
@click.option("--env", "env", multiple=True, metavar="NAME=VALUE", help="A variable of its process.")
@click.option("--entry", help="The whole entry as JSON, in place of all these.")
@click.option(
    "--preset", help="A reviewed entry; COMMAND is what it needs, such as folders.", type=click.Choice(sorted(PRESETS))
)
@click.option("--server-json", type=_FILE, help="A server.json of the MCP registry.")
@click.option("--remote", is_flag=True, help="Of a server.json: its remote address, even if it has a package.")
@click.option("--replace", is_flag=True, help="Replace a server of that name.")
@_digest_option
@json_option
def add(
    name: str,
    command: tuple[str, ...],
    url: str | None,
    env: tuple[str, ...],
    entry: str | None,
    preset: str | None,
    server_json: Path | None,
    digest: str | None,
    *,
    remote: bool,
    replace: bool,
    as_json: bool,
) -> None:
    """Add the server NAME, which COMMAND starts or that is at --url: `servers add files -- npx -y some-server /data`.

    Write references to secrets, such as `${TOKEN}`, and no secrets.
    """
    if sum(map(bool, (preset or command, url, entry, server_json))) != 1:
        raise click.UsageError("name one of COMMAND, --url, --entry, --preset and --server-json")
    if env and (preset or server_json):
        raise click.UsageError("--preset and --server-json take no --env beside them")
    operator = Operator()
    source = None
    if preset:
        source = build_from_preset(preset, command)
    elif server_json is not None:
        source = build_from_server_json(server_json, is_remote=remote)
    found = _build_entry(command, url, env, entry) if source is None else source.entry
    written = operator.add_server(name, found, replace=replace, digest=digest)
    _report(operator, written, "added", name, source, as_json=as_json)


@servers.command()
@click.argument("name", shell_complete=complete_server)
@_digest_option
@json_option
def remove(name: str, digest: str | None, *, as_json: bool) -> None:
    """Remove the server NAME. Workers serve it for their grace, and then answer its calls that it is gone."""
    operator = Operator()
    _report(operator, operator.remove_server(name, digest=digest), "removed", name, as_json=as_json)


@servers.command()
@click.argument("name", shell_complete=complete_server)
@_digest_option
@json_option
def enable(name: str, digest: str | None, *, as_json: bool) -> None:
    """Use the server NAME again."""
    operator = Operator()
    _report(operator, operator.enable_server(name, digest=digest), "enabled", name, as_json=as_json)


@servers.command()
@click.argument("name", shell_complete=complete_server)
@_digest_option
@json_option
def disable(name: str, digest: str | None, *, as_json: bool) -> None:
    """Keep the server NAME in the file, but do not use it."""
    operator = Operator()
    _report(operator, operator.disable_server(name, digest=digest), "disabled", name, as_json=as_json)


@servers.command()
@json_option
def reload(*, as_json: bool) -> None:
    """Have all workers take their configuration files now. Exit code 3 if none answers."""
    asked = Operator(app=tarsy_tasks.app).reload()
    if as_json:
        print_json({"asked": asked})
    else:
        for worker, version in sorted(asked.items()):
            click.echo(f"{worker} takes its configuration; it had {version}")
    if not asked:
        notes.print("no worker answered", style="red")
        raise click.exceptions.Exit(UNAVAILABLE)


servers.add_command(new)
servers.add_command(publish)
servers.add_command(export)
servers.add_command(history)


def _build_entry(command: Sequence[str], url: str | None, env: Sequence[str], entry: str | None) -> dict[str, Any]:
    if entry:
        try:
            found: Any = json.loads(entry)
        except ValueError as error:
            raise click.UsageError(f"--entry is not JSON: {error}") from None
        if not isinstance(found, dict) or env:
            raise click.UsageError("--entry takes a JSON object, and no --env beside it")
        return cast("dict[str, Any]", found)
    if wrong := [each for each in env if not each.partition("=")[0] or "=" not in each]:
        raise click.UsageError(f"--env {wrong[0].partition('=')[0]}: expected NAME=VALUE")
    variables = {"env": dict(each.split("=", 1) for each in env)} if env else {}
    if url:
        return {"url": url, **variables}
    return {"command": command[0], **({"args": [*command[1:]]} if command[1:] else {}), **variables}


def _report(
    operator: Operator, digest: str, what: str, name: str, source: SourcedEntry | None = None, *, as_json: bool
) -> None:
    if as_json:
        about = {"about": source.about} if source is not None else {}
        print_json({"server": name, "change": what, "path": operator.place, "digest": digest, **about})
        return
    click.echo(f"{operator.place}: {what} {name}; it is {digest} now. Workers that read it take it within 5 s")
    for line in source.describe() if source is not None else ():
        click.echo(line)


def _list(*, as_json: bool) -> None:
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
        "capabilities": next((report.capabilities for report in reports if report.capabilities), None),
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
        return server.command or server.command_line or ""
    parts = urlsplit(server.url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
