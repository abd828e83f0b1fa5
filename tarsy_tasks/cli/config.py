"""`tarsy-tasks config`: check the configuration file, print its JSON Schema, import a client's file."""

import os
from pathlib import Path

import click

from tarsy_tasks.cli.output import counted, json_option, notes, print_json
from tarsy_tasks.config import (
    check_secrets,
    config_schema,
    describe_unused,
    find_config_path,
    load_config,
    resolve_variables,
)
from tarsy_tasks.config.client_files import CLIENTS, find_client_files
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.policy import add_to_config_schema, load_policy

__all__ = ["config"]


@click.group()
def config() -> None:
    """Check the configuration of the MCP servers, print its schema, or import another client's."""


@config.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@json_option
def check(path: Path | None, *, as_json: bool) -> None:
    """Check the configuration at PATH, or the one that a worker would read here.

    Possible secrets are shown as ••••, long ones with their last two characters. Warnings name secrets that are written
    in the file itself, and keys of other clients that are ignored.
    """
    path = path or find_config_path()
    found = load_config(path)
    exposures = check_secrets(path)
    unused = describe_unused(path)
    policy = load_policy(path)
    unresolved: dict[str, str] = {}
    secrets: dict[str, dict[str, str]] = {}
    for name, server in found.enabled_servers.items():
        of_agent = {
            each: f"${{agent:{each}}}" for each in server.agent_variables
        }  # nobody's, so its reference is shown
        try:
            secrets[name] = dict(resolve_variables(server, os.environ, of_agent).shown)
        except ConfigError as error:
            unresolved[name] = str(error)
    if as_json:
        servers = [
            {"server": name, "transport": each.transport, "enabled": each.enabled, "secrets": secrets.get(name, {})}
            for name, each in found.servers.items()
        ]
        warnings = [{"text": exposure.text, "remedy": exposure.remedy} for exposure in exposures]
        print_json(
            {
                "path": str(path),
                "servers": servers,
                "unresolved": unresolved,
                "warnings": warnings,
                "ignored": unused,
                "policy": policy.version if policy is not None else None,
            }
        )
        return
    names = f": {', '.join(found.servers)}" if found.servers else ""
    click.echo(f"{path}: {counted(len(found.servers), 'server')}, {len(found.enabled_servers)} enabled{names}")
    if policy is not None:
        click.echo(f"policy {policy.version} of {policy.source}")
    for name, shown in secrets.items():
        if shown:
            click.echo(f"{name}: {', '.join(f'{place} {value}' for place, value in shown.items())}")
    for line in unused:
        notes.print(line)
    for problem in unresolved.values():
        notes.print(f"a worker with this environment cannot use it: {problem}", style="yellow")
    for exposure in exposures:
        notes.print(f"warning: {exposure}", style="yellow")


@config.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    print_json(add_to_config_schema(config_schema()))


@config.command("import")
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--from", "client", type=click.Choice(sorted(CLIENTS)), help="Find the file of this client here.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write. Default: print it.")
@click.option(
    "--secrets",
    type=click.Choice(["keep", "env", "files"]),
    default="keep",
    show_default=True,
    help="What becomes of secrets in the file: they stay, or move to a file of variables beside OUTPUT, or to one file "
    "each in a folder beside OUTPUT.",
)
@click.option("--force", is_flag=True, help="Replace files that exist.")
def import_(path: Path | None, client: str | None, output: Path | None, secrets: str, *, force: bool) -> None:
    """Write the MCP servers of another client's file at PATH as our own configuration.

    Any file that is understood works as it is, too; this makes a file that is ours to change. Existing files are not
    merged: their comments would be lost.
    """
    from tarsy_tasks.cli.importing import write_import

    if (path is None) == (client is None):
        raise click.UsageError("name a file, or a client with --from")
    if path is None and client is not None:
        path = _find(client)
    assert path is not None
    write_import(path, output, secrets, force=force)


def _find(client: str) -> Path:
    found, places = find_client_files(client)
    if not found:
        listed = "\n  ".join(map(str, places))
        raise ConfigError(f"{client} has no configuration file here; looked for\n  {listed}\nName the file instead.")
    for other in found[1:]:
        notes.print(f"not read: {other}")
    return found[0]
