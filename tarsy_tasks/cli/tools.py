"""`tarsy-tasks tools`: what the servers offer."""

import click

import tarsy_tasks
from tarsy_tasks import ToolExecutor
from tarsy_tasks.cli import UNAVAILABLE
from tarsy_tasks.cli.output import json_option, notes, print_json, print_table

__all__ = ["tools"]


@click.group()
def tools() -> None:
    """Tools of the MCP servers."""


@tools.command("list")
@click.argument("servers", nargs=-1)
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds to wait for the workers.")
@json_option
@click.pass_context
def list_tools(ctx: click.Context, servers: tuple[str, ...], timeout_s: float, *, as_json: bool) -> None:
    """List the tools of SERVERS, or of all. Exit code 3 when a server did not answer."""
    try:
        executor = ToolExecutor(servers or None, timeout_s=timeout_s, app=tarsy_tasks.app)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    with executor:
        with notes.status("asking the workers"):
            found = executor.list_tools()
        failed = executor.failed_servers()
    if as_json:
        print_json({"tools": [tool.model_dump(mode="json") for tool in found], "failed_servers": failed})
    else:
        rows = [(tool.name, " ".join(tool.input_schema.get("properties", {})), tool.description) for tool in found]
        print_table(("tool", "arguments", "description"), rows)
        for server, why in failed.items():
            notes.print(f"{server}: {why}", style="red", markup=False)
    if failed:
        ctx.exit(UNAVAILABLE)
