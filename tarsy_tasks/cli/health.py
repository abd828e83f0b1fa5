"""`tarsy-tasks health`: which MCP servers work, and why not."""

import time
from collections.abc import Callable
from contextlib import suppress

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

import tarsy_tasks
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.known_names import complete_server
from tarsy_tasks.cli.output import (
    build_table,
    busy,
    clock_time,
    console,
    dump_json,
    json_option,
    notes,
    print_json,
    print_table,
)
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.health import statuses
from tarsy_tasks.telemetry.health_records import ServerHealth
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["health", "selected_servers"]

_WATCH_S = 2.0
_OUTDATED_S = 3 * _WATCH_S
"""A table that is older is not shown."""
_COLUMNS = (
    "server", "health", "since", "checked", "latency", "queue wait", "tools", "failed calls", "workers", "reason",
)  # fmt: skip


@click.command()
@click.argument("servers", nargs=-1, shell_complete=complete_server)
@click.option("--watch", is_flag=True, help="Keep running until Ctrl-C; without a terminal, print a line per change.")
@json_option
def health(servers: tuple[str, ...], *, watch: bool, as_json: bool) -> None:
    """Show the health of SERVERS, or of all enabled servers.

    Exit code 0 when all are healthy, 1 when one is not or is unknown, 3 without Redis.
    """
    names = selected_servers(servers)

    def read() -> dict[str, ServerHealth]:
        return statuses(names, app=tarsy_tasks.app)

    if watch and console.is_terminal and not as_json:
        _watch(read)
        return
    if watch:
        _follow(read, as_json=as_json)
        return
    with busy("reading the health records"):
        found = read()
    if as_json:
        print_json([each.model_dump(mode="json") for each in found.values()])
    else:
        print_table(_COLUMNS, [_row(each) for each in found.values()], nothing="no server is enabled")
        for phrase in dict.fromkeys(phrase for each in found.values() for phrase in each.skipped):
            notes.print(f"skipped: {phrase}", style="yellow")
    if not all(each.healthy for each in found.values()):
        raise click.exceptions.Exit(FAILED)


def selected_servers(servers: tuple[str, ...]) -> list[str]:
    """The servers that a command line names, or all enabled ones if it names none.

    Raises:
        UsageError: One of them is not configured, or not enabled.
    """
    known = tarsy_tasks.app.mcp_config.enabled_servers
    if unknown := [name for name in servers if name not in known]:
        raise click.UsageError(
            f"not configured or not enabled: {', '.join(unknown)}. Enabled servers: {', '.join(known) or 'none'}"
        )
    return list(dict.fromkeys(servers)) or list(known)


def _watch(read: Callable[[], dict[str, ServerHealth]]) -> None:
    """Show a table that is drawn every second, even while a read waits for Redis."""
    found: dict[str, ServerHealth] = {}
    read_at, outage = time.monotonic(), ""

    def draw() -> RenderableType:
        age_s = time.monotonic() - read_at
        if outage or age_s > _OUTDATED_S:
            why = outage or "Redis does not answer, so no health is known."
            return Text(f"{why} Last read {age_s:.0f} s ago.", style="red")
        return build_table(_COLUMNS, [_row(each, age_s) for each in found.values()])

    with suppress(KeyboardInterrupt), Live(get_renderable=draw, console=console, refresh_per_second=1):
        while True:
            try:
                found, read_at, outage = read(), time.monotonic(), ""
            except BrokerUnavailable as error:
                outage = str(error)
            time.sleep(_WATCH_S)


def _follow(read: Callable[[], dict[str, ServerHealth]], *, as_json: bool) -> None:
    """Print a line per server, then one per change."""
    printed: dict[str, str] = {}
    outage = ""
    with suppress(KeyboardInterrupt):
        while True:
            try:
                _print_changes(read(), printed, as_json=as_json)
                outage = ""
            except BrokerUnavailable as error:
                if not outage:
                    outage = str(error)
                    click.echo(f"tarsy-tasks: {outage}", err=True)
                printed.clear()  # after the outage every server is printed again
            time.sleep(_WATCH_S)


def _print_changes(found: dict[str, ServerHealth], printed: dict[str, str], *, as_json: bool) -> None:
    for name, each in found.items():
        if printed.get(name) == each.status:
            continue
        printed[name] = each.status
        if as_json:
            click.echo(dump_json(each.model_dump(mode="json")))
        else:
            reason = make_visible(" ".join(each.reason.split()))
            click.echo("\t".join((clock_time(time.time()), name, each.status, reason)))


def _row(each: ServerHealth, since_read_s: float = 0.0) -> tuple[str, ...]:
    return (
        each.server,
        f"{each.status} ({_idle_word(each)})" if each.is_idle else each.status,
        clock_time(each.since) if each.since is not None else "",
        f"{each.age_s + since_read_s:.0f} s ago" if each.age_s is not None else "",
        _duration(each.latency_s),
        _duration(each.queue_wait_s),
        str(each.tool_count) if each.tool_count is not None else "",
        f"{each.failed_calls} of {each.recent_calls}" if each.recent_calls else "",
        str(len(each.workers)),
        each.reason,
    )


def _idle_word(each: ServerHealth) -> str:
    """Why no check asks the server: of one that each agent uses with its own credential, only calls show how it is."""
    return "per agent" if any(record.state == "per_agent" for record in each.workers.values()) else "idle"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
