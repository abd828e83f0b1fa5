"""`tarsy-tasks resources`: what the servers offer to read; and `tarsy-tasks read`: reading it."""

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from tarsy_tasks.cli import UNAVAILABLE
from tarsy_tasks.cli.call import exit_code, print_result
from tarsy_tasks.cli.known_names import complete_server
from tarsy_tasks.cli.output import dump_json, json_option, notes, print_json, print_line, print_table
from tarsy_tasks.cli.server_requests import ask_servers, build_executor, read_pairs, report_failed

if TYPE_CHECKING:
    from tarsy_tasks import ResourceDefinition, ResourceTemplate, ToolExecutor

__all__ = ["read", "resources"]


@click.group()
def resources() -> None:
    """List the resources of the MCP servers."""


@resources.command("list")
@click.argument("servers", nargs=-1, shell_complete=complete_server)
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds to wait for the workers.")
@json_option
def list_resources(servers: tuple[str, ...], timeout_s: float, *, as_json: bool) -> None:
    """List the resources and resource templates of SERVERS, or of all servers.

    The workers are asked. Exit code 3 when one of them does not answer for a server.
    """
    from tarsy_tasks.cli.health import selected_servers

    found: list[ResourceDefinition] = []
    templates: list[ResourceTemplate] = []

    def ask(executor: "ToolExecutor", server: str) -> None:
        found.extend(executor.list_resources(server))
        templates.extend(executor.list_resource_templates(server))

    failed = ask_servers(servers, timeout_s, "resources", ask)
    if as_json:
        listed = {"resources": found, "resource_templates": templates}
        dumped: dict[str, Any] = {
            key: [each.model_dump(mode="json") for each in definitions] for key, definitions in listed.items()
        }
        print_json({**dumped, "failed_servers": failed})
    else:
        rows = [(each.server, each.uri, each.mime_type or "", _describe(each)) for each in found]
        rows += [(each.server, each.uri_template, each.mime_type or "", _describe(each)) for each in templates]
        print_table(("server", "URI", "type", "description"), rows, nothing="no resources")
        answered = {each.server for each in (*found, *templates)} | failed.keys()
        for server in _without_resources([name for name in selected_servers(servers) if name not in answered]):
            notes.print(Text(f"{server}: it says that it has no resources"), style="dim")
        report_failed(failed)
    if failed:
        raise click.exceptions.Exit(UNAVAILABLE)


@resources.command("watch")
@click.argument("uri")
@click.option("--server", shell_complete=complete_server, help="Whose resource it is; needed if there are several.")
@click.option("--count", type=click.IntRange(1), help="End after so many changes.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait until it is watched.")
@json_option
def watch_resource(uri: str, server: str | None, count: int | None, timeout_s: float, *, as_json: bool) -> None:
    """Print each change of the resource at URI, until Ctrl-C. With --json, each is a line."""
    from tarsy_tasks.errors import CallError, OutcomeError

    try:
        with build_executor(timeout_s) as executor, executor.watch_resource(uri, server=server) as watch:
            notes.print(Text(f"watching {uri}"), style="dim")
            for change in islice(watch, count):
                if as_json:
                    click.echo(dump_json(change.model_dump(mode="json")))
                else:
                    print_line([change.uri, "changed" if change.is_certain else "may have changed"])
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except OutcomeError as error:
        notes.print(Text(error.result.content))
        raise click.exceptions.Exit(exit_code(error.result)) from None
    except CallError as error:
        raise click.ClickException(str(error)) from None


@click.command()
@click.argument("uri")
@click.option("--server", shell_complete=complete_server, help="Whose resource it is; needed if there are several.")
@click.option("--value", "values", multiple=True, metavar="NAME=VALUE", help="For a variable of a URI template.")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the contents to this file.")
@click.option("--timeout", "timeout_s", default=60.0, show_default=True, help="Seconds to wait for the answer.")
@json_option
def read(
    uri: str, server: str | None, values: tuple[str, ...], output: Path | None, timeout_s: float, *, as_json: bool
) -> None:
    """Read the resource at URI.

    With --value, URI is a template, as `resources list` shows it. What is not text is shown as its type and size; use
    --output to keep it.
    """
    executor = build_executor(timeout_s)
    try:
        result = executor.read_resource(uri, server=server, values=read_pairs(values, "--value") if values else None)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        contents = [each.model_dump(mode="json") for each in result.contents]
        print_json({**result.model_dump(mode="json"), "contents": contents, "is_error": result.is_error})
    elif output is None or result.is_error:
        print_result(result)
    if output is not None and not result.is_error:
        try:
            output.write_bytes(b"".join(each.read_bytes() for each in result.contents))
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from None
        notes.print(Text(f"wrote {output}"))
    raise click.exceptions.Exit(exit_code(result))


def _without_resources(servers: list[str]) -> list[str]:
    """Those of which a worker reports that resources are none of their capabilities."""
    import tarsy_tasks
    from tarsy_tasks.errors import BrokerUnavailable
    from tarsy_tasks.health import statuses

    try:
        health = statuses(servers, app=tarsy_tasks.app) if servers else {}
    except BrokerUnavailable:
        return []
    reported = {name: [each.capabilities for each in found.workers.values()] for name, found in health.items()}
    known = {name: next(filter(None, each), ()) for name, each in reported.items()}
    return [name for name, capabilities in known.items() if capabilities and "resources" not in capabilities]


def _describe(found: "ResourceDefinition | ResourceTemplate") -> str:
    return found.description or found.title or found.name
