"""`tarsy-tasks tools`: list and search the servers' tools, show what changed, approve changes."""

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
from rich.text import Text

import tarsy_tasks
from tarsy_tasks.cli import FAILED, UNAVAILABLE
from tarsy_tasks.cli.known_names import complete_server, complete_tool, remember_names
from tarsy_tasks.cli.output import busy, console, json_option, notes, print_json, print_table
from tarsy_tasks.telemetry.printable import make_visible

if TYPE_CHECKING:
    from tarsy_tasks import ToolDefinition, ToolList
    from tarsy_tasks.catalogue import ListedServer, ToolDiff

__all__ = ["tools"]

_COLOURS = {"+": "green", "-": "red"}


@click.group()
def tools() -> None:
    """List, search, compare and approve the tools of the MCP servers."""


@tools.command("list")
@click.argument("servers", nargs=-1, shell_complete=complete_server)
@click.option("--live", is_flag=True, help="List what the sessions of the workers know now, and the servers that fail.")
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds to wait for the workers.")
@json_option
def list_tools(servers: tuple[str, ...], timeout_s: float, *, live: bool, as_json: bool) -> None:
    """List the tools of SERVERS, or of all servers, from the catalogue in Redis.

    Servers that are not in the catalogue yet are asked live. Exit code 3 when one of them does not answer.
    """
    from tarsy_tasks.health import statuses  # not above: the completion of a shell imports this module, too

    listed, tools = _find_tools(servers, timeout_s, live=live)
    if as_json:
        _print_json(tools, tools)
    else:
        _print_tools(tools, tools)
        for server in listed:
            for tool, why in listed[server].listing.left_out.items():
                text = f"{server}: the tool {tool!r} is not valid in MCP, and cannot be called: {why}"
                notes.print(Text(text), style="yellow")
            if listed[server].diff:
                notes.print(f"{server}: {listed[server].diff} since the approval", style="yellow")
        for health in statuses(listed, app=tarsy_tasks.app).values():
            if not health.healthy:
                notes.print(f"this list may be outdated: {health.warning}", style="yellow")
    if console.is_terminal:
        names: dict[str, list[str]] = {name: [] for name in listed}
        for tool in tools:
            names.setdefault(tool.server, []).append(tool.tool)
        remember_names(tarsy_tasks.app.mcp_config.enabled_servers, names)
    if tools.failed_servers:
        raise click.exceptions.Exit(UNAVAILABLE)


@tools.command("search")
@click.argument("words", metavar="TEXT...", nargs=-1, required=True)
@click.option(
    "--server", "servers", multiple=True, shell_complete=complete_server, help="Only of this server; repeatable."
)
@click.option("--limit", default=8, show_default=True, type=click.IntRange(min=1), help="How many tools at most.")
@click.option("--live", is_flag=True, help="List what the sessions of the workers know now, and the servers that fail.")
@click.option("--timeout", "timeout_s", default=30.0, show_default=True, help="Seconds to wait for the workers.")
@json_option
def search_tools(
    words: tuple[str, ...], servers: tuple[str, ...], limit: int, timeout_s: float, *, live: bool, as_json: bool
) -> None:
    """Search the tools by what they do, best first, such as `tools search restart a deployment`.

    Servers that are not in the catalogue yet are asked live. Exit code 1 when nothing was found, 3 when a server does
    not answer.
    """
    _, tools = _find_tools(servers, timeout_s, live=live)
    found = tools.search(" ".join(words), limit=limit)
    if as_json:
        _print_json(found, tools)
    else:
        _print_tools(found, tools)
    if tools.failed_servers:
        raise click.exceptions.Exit(UNAVAILABLE)
    if not found:
        raise click.exceptions.Exit(FAILED)


@tools.command("diff")
@click.argument("servers", nargs=-1, shell_complete=complete_server)
@json_option
def diff_tools(servers: tuple[str, ...], *, as_json: bool) -> None:
    """Show how the tools of SERVERS, or of all servers, differ from the approved ones.

    Exit code 0 without differences, 1 with differences.
    """
    from tarsy_tasks.catalogue import ToolCatalogue
    from tarsy_tasks.cli.health import selected_servers

    names = selected_servers(servers)
    listed = ToolCatalogue(names, app=tarsy_tasks.app).servers()
    if as_json:
        print_json(
            {
                name: {
                    **each.diff.model_dump(mode="json"),
                    "listing": each.digest,
                    "counts": each.counts,
                    "listed_at": each.listed_at,
                }
                for name, each in listed.items()
            }
        )
    else:
        for name, each in listed.items():
            _print_diff(name, each.diff)
            if each.diff:
                hint = f"to approve exactly these tools: tarsy-tasks tools approve {name} --listing {each.digest}"
                notes.print(hint, style="dim")
        if not any(each.diff for each in listed.values()):
            notes.print("no differences from the approved tools", style="dim")
        for name in names:
            if name not in listed:
                notes.print(f"{name}: not in the catalogue yet; start a worker that serves it", style="yellow")
    if any(each.diff for each in listed.values()):
        raise click.exceptions.Exit(FAILED)


@tools.command("approve")
@click.argument("names", metavar="SERVER[.TOOL]...", nargs=-1, required=True, shell_complete=complete_tool)
@click.option("--listing", metavar="DIGEST", help="Approve only if the server still lists what `tools diff` showed.")
@click.option("--yes", "-y", is_flag=True, help="Approve what is listed now, without asking.")
@json_option
def approve(names: tuple[str, ...], listing: str | None, *, yes: bool, as_json: bool) -> None:
    """Approve all tools of a server, or one tool. This takes effect with the next call.

    On a terminal it shows the differences and asks. Exit code 1 when the answer is no, or the server's list has changed
    since --listing.
    """
    from tarsy_tasks.catalogue import ToolCatalogue, approve_tools
    from tarsy_tasks.cli.health import selected_servers

    wanted: dict[str, list[str] | None] = {}
    for name in names:
        server, dot, tool = name.partition(".")
        selected_servers((server,))
        before = wanted.get(server, [])
        wanted[server] = [*before, tool] if dot and before is not None else None
    listed = ToolCatalogue(list(wanted), app=tarsy_tasks.app).servers()
    for server, chosen in wanted.items():
        if server not in listed:
            notes.print(
                f"MCP server `{server}` is not in the catalogue yet; start a worker that serves it", style="red"
            )
            raise click.exceptions.Exit(UNAVAILABLE)
        known = {tool.tool for tool in listed[server].listing.tools} | listed[server].diff.removed.keys()
        if unknown := [tool for tool in chosen or [] if tool not in known]:
            raise click.UsageError(
                f"server {server} has no tool {', '.join(unknown)}; tools: {', '.join(sorted(known)) or 'none'}"
            )
    if listing is not None and len(wanted) != 1:
        raise click.UsageError("--listing belongs to one server: approve each server with its own command")
    if listing is not None and (changed := [server for server in wanted if listed[server].digest != listing]):
        notes.print(f"{changed[0]} has changed its tools since then: run `tools diff` again", style="red")
        raise click.exceptions.Exit(FAILED)
    if listing is None and not yes and any(listed[server].diff for server in wanted):
        _ask({server: listed[server].diff for server in wanted})
    redis = tarsy_tasks.app.backend.client
    approved = {server: approve_tools(redis, listed[server], chosen) for server, chosen in wanted.items()}
    if as_json:
        print_json({server: diff.model_dump(mode="json") for server, diff in approved.items()})
        return
    for server, diff in approved.items():
        _print_diff(server, diff)
        click.echo(make_visible(f"{server}: approved {diff}" if diff else f"{server}: nothing to approve"))


def _find_tools(
    servers: tuple[str, ...], timeout_s: float, *, live: bool
) -> "tuple[dict[str, ListedServer], ToolList]":
    """The tools in the catalogue, and those of servers that are not in it, which workers are asked for.

    Returns:
        What the catalogue has, by server; all tools, in the order of the servers.
    """
    from tarsy_tasks import ToolExecutor, ToolList
    from tarsy_tasks.catalogue import ToolCatalogue
    from tarsy_tasks.cli.health import selected_servers

    names = selected_servers(servers)
    listed = {} if live else ToolCatalogue(names, app=tarsy_tasks.app).servers()
    found = {name: list(listed[name].listing.tools) for name in names if name in listed}
    failed: dict[str, str] = {}
    if asked := [name for name in names if name not in listed]:
        with ToolExecutor(asked, timeout_s=timeout_s, app=tarsy_tasks.app) as executor:
            with busy(f"asking the workers for the tools of {', '.join(asked)}"):
                answered = executor.list_tools()
            for tool in answered:
                found.setdefault(tool.server, []).append(tool)
            failed = answered.failed_servers
    return listed, ToolList((tool for name in names for tool in found.get(name, [])), failed, {})


def _print_json(shown: "Sequence[ToolDefinition]", listed: "ToolList") -> None:
    print_json(
        {"tools": [tool.model_dump(mode="json") for tool in shown], "failed_servers": listed.failed_servers},
    )


def _print_tools(shown: "Sequence[ToolDefinition]", listed: "ToolList") -> None:
    rows = [(tool.name, " ".join(tool.input_schema.get("properties", {})), tool.description) for tool in shown]
    print_table(("tool", "arguments", "description"), rows, nothing="no tools")
    for server, why in listed.failed_servers.items():
        notes.print(f"{server}: {why}", style="red")


def _ask(diffs: "Mapping[str, ToolDiff]") -> None:
    """Show the operator what would be approved; end the command if they refuse."""
    if not sys.stdin.isatty():
        text = "no terminal to confirm on: use --listing with the digest that `tools diff` prints, or --yes"
        raise click.UsageError(text)
    for server, diff in diffs.items():
        _print_diff(server, diff)
    if not click.confirm("approve this?", err=True):
        raise click.exceptions.Exit(FAILED)


def _print_diff(server: str, diff: "ToolDiff") -> None:
    from tarsy_tasks.catalogue import diff_lines

    for tool in diff.added:
        console.print(_line(f"+ {server}.{tool}: added", "green"))
    for tool in diff.removed:
        console.print(_line(f"- {server}.{tool}: removed", "red"))
    for tool, (before, now) in diff.changed.items():
        console.print(_line(f"~ {server}.{tool}: changed", "yellow"))
        if before is None:
            console.print(_line("  the approved definition cannot be read", "dim"))
            continue
        for line in diff_lines(before, now):
            console.print(_line(f"  {line}", _COLOURS.get(line[:1], "")))


def _line(text: str, style: str) -> Text:
    return Text(make_visible(text), style=style)
