"""`tarsy-tasks health`: which MCP servers work, and how that is known."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

import click
from rich.live import Live

import tarsy_tasks
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.output import build_table, console, json_option, notes, print_json, print_table
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.health import ServerHealth, statuses

__all__ = ["health", "selected_servers"]

_WATCH_S = 2.0
_COLUMNS = ("server", "health", "since", "checked", "latency", "queue", "tools", "failed calls", "workers", "why")


@click.command()
@click.argument("servers", nargs=-1)
@click.option("--watch", is_flag=True, help="Go on until Ctrl-C; where there is no terminal, a line a change.")
@json_option
@click.pass_context
def health(ctx: click.Context, servers: tuple[str, ...], *, watch: bool, as_json: bool) -> None:
    """Show the health of SERVERS, or of all that are enabled.

    Exit code 0 when all of them are healthy, 1 when one is not or nothing is known of it, 3 without Redis.
    """
    names = selected_servers(servers)

    def read() -> dict[str, ServerHealth]:
        return statuses(names, app=tarsy_tasks.app)

    if watch:
        _watch(read, as_json=as_json)
        return
    found = read()
    if as_json:
        print_json([each.model_dump(mode="json") for each in found.values()])
    else:
        print_table(_COLUMNS, [_row(each) for each in found.values()])
        for phrase in dict.fromkeys(phrase for each in found.values() for phrase in each.skipped):
            notes.print(f"skipped: {phrase}", style="yellow", markup=False)
    if not all(each.healthy for each in found.values()):
        ctx.exit(FAILED)


def selected_servers(servers: tuple[str, ...]) -> list[str]:
    """The servers of a command line, all that are enabled where it names none.

    Raises:
        UsageError: One of them is not configured, or not enabled.
    """
    known = tarsy_tasks.app.mcp_config.enabled_servers
    if strangers := [name for name in servers if name not in known]:
        raise click.UsageError(
            f"not configured, or not enabled: {', '.join(strangers)}. Servers: {', '.join(known) or 'none'}"
        )
    return list(dict.fromkeys(servers)) or list(known)


def _watch(read: Callable[[], dict[str, ServerHealth]], *, as_json: bool) -> None:
    told: dict[str, str] = {}
    live = None if as_json or not console.is_terminal else Live(console=console, auto_refresh=False)
    try:
        with live or notes.capture():
            while True:
                try:
                    found = read()
                except BrokerUnavailable as error:
                    click.echo(f"tarsy-tasks: {error}", err=True)
                    found = {}
                if live is not None and found:
                    live.update(build_table(_COLUMNS, [_row(each) for each in found.values()]), refresh=True)
                elif live is None:
                    _print_changes(found, told, as_json=as_json)
                time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        return


def _print_changes(found: dict[str, ServerHealth], told: dict[str, str], *, as_json: bool) -> None:
    for name, each in found.items():
        if told.get(name) == each.status:
            continue
        told[name] = each.status
        if as_json:
            click.echo(json.dumps(each.model_dump(mode="json"), ensure_ascii=False))
        else:
            click.echo("\t".join((_clock(time.time()), name, each.status, " ".join(each.reason.split()))))


def _row(each: ServerHealth) -> tuple[str, ...]:
    return (
        each.server,
        each.status,
        _clock(each.since) if each.since is not None else "",
        f"{each.age_s:.0f} s ago" if each.age_s is not None else "",
        _duration(each.latency_s),
        _duration(each.queue_wait_s),
        str(each.tool_count) if each.tool_count is not None else "",
        f"{each.failed_calls} of {each.recent_calls}" if each.recent_calls else "",
        str(len(each.workers)),
        each.reason,
    )


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%H:%M:%S")
