"""`tarsy-tasks audit`: how calls ended, and who made them."""

import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.known_names import complete_server, complete_tool
from tarsy_tasks.cli.output import (
    busy,
    clock_time,
    console,
    dump_json,
    json_option,
    local_time,
    print_line,
    print_table,
)
from tarsy_tasks.cli.tables import TableLayout
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.priorities import NORMAL, PRIORITIES
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, Follower, read_audit

__all__ = ["audit"]

_COLUMNS = (
    "time", "tool", "outcome", "code", "attempts", "duration", "agent", "principal", "run", "call", "task",
    "priority", "worker", "arguments", "rule",
)  # fmt: skip
_USUAL = ("23:59:59", "server.some_tool", "tool_error", "TOOL_ERROR", "1", "0.123 s", *[""] * 9)
"""What a row takes, for a table that begins without one."""
_SHOWN_CHARS = 80
_POLL_S = 2.0
_RECONNECT_S = 1.0
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGO = re.compile(rf"(\d{{1,9}})([{''.join(_UNITS_S)}])")


class _Time(click.ParamType[float]):
    """A date and time, or an age."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if ago := _AGO.fullmatch(str(value)):
            return max(0.0, time.time() - int(ago[1]) * _UNITS_S[ago[2]])
        try:
            return max(0.0, datetime.fromisoformat(str(value)).timestamp())
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time: use 90s, 10m, 2h, 7d or a date like 2026-03-01T14:30", param, ctx)


@click.command()
@click.option("--server", shell_complete=complete_server, help="Calls of this MCP server.")
@click.option(
    "--tool",
    metavar="GLOB",
    shell_complete=complete_tool,
    help="Calls of these tools; with or without the server's name.",
)
@click.option("--outcome", "outcomes", type=click.Choice([*map(str, Outcome)]), multiple=True, help="Can be repeated.")
@click.option("--agent", "agent_id", help="Calls of this agent.")
@click.option("--principal", help="Calls of this sender, as workers have verified it.")
@click.option("--priority", type=click.Choice(PRIORITIES), help="Calls of this priority.")
@click.option("--run", "run_id", help="Calls of this run.")
@click.option("--call", "call_id", help="The id that the model gave the call.")
@click.option("--task", "task_id", help="The id of the Celery task.")
@click.option("--since", type=_Time(), help="Not before: 90s, 10m, 2h, 7d ago, or 2026-03-01T14:30.")
@click.option("--until", type=_Time(), help="Not after.")
@click.option(
    "--limit", default=100, show_default=True, type=click.IntRange(1, 1_000_000), help="Maximum number of calls."
)
@click.option("--follow", is_flag=True, help="Keep running until Ctrl-C.")
@json_option
def audit(*, limit: int, follow: bool, as_json: bool, outcomes: tuple[str, ...], **filters: Any) -> None:
    """Show the latest calls that have ended, the newest last. With --json: one JSON object per line.

    Exit code 0 even when there are none, 3 without Redis.
    """
    if follow and filters["until"] is not None:
        raise click.UsageError("--follow has no end: use it without --until")
    wanted = AuditFilter(outcomes=frozenset(map(Outcome, outcomes)), **filters)
    if follow:
        _follow(wanted, limit, as_json=as_json)
        return
    with busy("reading the audit"), broker() as redis:
        page = read_audit(redis, wanted, limit=limit)
    entries = page.entries[::-1]
    if as_json:
        _dump(entries)
    else:
        print_table(_COLUMNS, list(map(_row, entries)), nothing="no call that has ended matches")


def _follow(wanted: AuditFilter, limit: int, *, as_json: bool) -> None:
    follower = Follower(wanted)
    show = _dump if as_json else _Table() if console.is_terminal else _print_plain
    has_begun = False
    with suppress(KeyboardInterrupt):
        while True:
            try:
                with broker() as redis:
                    if not has_begun:
                        show(follower.begin(redis, limit))
                        has_begun = True
                    while True:
                        show(follower.poll(redis, _POLL_S))
            except BrokerUnavailable as error:
                if not has_begun:
                    raise
                click.echo(f"tarsy-tasks: {error}", err=True)
                time.sleep(_RECONNECT_S)


class _Table:
    """A table on a terminal that gets longer. The first entries decide its columns; what later ones have beyond them
    stands below their lines.
    """

    def __init__(self) -> None:
        self._layout: TableLayout | None = None

    def __call__(self, entries: Sequence[AuditEntry]) -> None:
        rows = list(map(_row, entries))
        if self._layout is None:
            self._layout = TableLayout(_COLUMNS, [*rows, _USUAL], console.width)
            console.print(self._layout.header())
        for row in rows:
            for line in self._layout.render(row, console):
                console.print(line)


def _dump(entries: Iterable[AuditEntry]) -> None:
    for entry in entries:
        click.echo(dump_json(entry.model_dump(mode="json")))


def _print_plain(entries: Iterable[AuditEntry]) -> None:
    for entry in entries:
        print_line(_row(entry))


def _row(entry: AuditEntry) -> tuple[str, ...]:
    at = clock_time(entry.at) if console.is_terminal else local_time(entry.at, timespec="milliseconds")
    writer = entry.worker if entry.source == "worker" else "(agent)"
    if entry.damage is not None:
        return (at, f"damaged: {entry.damage}", *[""] * (len(_COLUMNS) - 5), writer, "", "")
    return (
        at,
        entry.name,
        entry.outcome or "",
        entry.error_code or "",
        str(entry.attempts),
        f"{entry.duration_s:.3g} s",
        entry.agent_id or "",
        entry.principal or "",
        entry.run_id or "",
        entry.call_id,
        entry.task_id,
        "" if entry.priority == NORMAL else entry.priority,
        writer,
        entry.arguments[:_SHOWN_CHARS],
        entry.rule or "",
    )
