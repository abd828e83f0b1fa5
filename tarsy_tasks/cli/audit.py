"""`tarsy-tasks audit`: how calls ended, and who made them."""

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.output import dump_json, json_option, local_time, print_line, print_table
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.outcomes import Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, AuditFilter, Follower, read_audit

__all__ = ["audit"]

_COLUMNS = (
    "time", "tool", "outcome", "code", "attempts", "duration", "agent", "run", "call", "task", "worker", "arguments",
)  # fmt: skip
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
@click.option("--server", help="Calls of this MCP server.")
@click.option("--tool", metavar="GLOB", help="Calls of these tools; with or without the server's name.")
@click.option("--outcome", "outcomes", type=click.Choice([*map(str, Outcome)]), multiple=True, help="Can be repeated.")
@click.option("--agent", "agent_id", help="Calls of this agent.")
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
    """Show the latest ended calls, one per line, the newest last. With --json: one JSON object per line.

    Exit code 0 even when there are none, 3 without Redis.
    """
    if follow and filters["until"] is not None:
        raise click.UsageError("--follow has no end: use it without --until")
    wanted = AuditFilter(outcomes=frozenset(map(Outcome, outcomes)), **filters)
    if follow:
        _follow(wanted, limit, as_json=as_json)
        return
    with broker() as redis:
        page = read_audit(redis, wanted, limit=limit)
    _print(page.entries[::-1], as_json=as_json)


def _follow(wanted: AuditFilter, limit: int, *, as_json: bool) -> None:
    follower = Follower(wanted)
    has_begun = False
    with suppress(KeyboardInterrupt):
        while True:
            try:
                with broker() as redis:
                    if not has_begun:
                        _print(follower.begin(redis, limit), as_json=as_json)
                        has_begun = True
                    while True:
                        _print_lines(follower.poll(redis, _POLL_S), as_json=as_json)
            except BrokerUnavailable as error:
                if not has_begun:
                    raise
                click.echo(f"tarsy-tasks: {error}", err=True)
                time.sleep(_RECONNECT_S)


def _print(entries: list[AuditEntry], *, as_json: bool) -> None:
    if as_json:
        _print_lines(entries, as_json=True)
    else:
        print_table(_COLUMNS, [_row(entry) for entry in entries])


def _print_lines(entries: Iterable[AuditEntry], *, as_json: bool) -> None:
    for entry in entries:
        if as_json:
            click.echo(dump_json(entry.model_dump(mode="json")))
        else:
            print_line(_row(entry))


def _row(entry: AuditEntry) -> tuple[str, ...]:
    at = local_time(entry.at, timespec="milliseconds")
    writer = entry.worker if entry.source == "worker" else "(agent)"
    if entry.damage is not None:
        return (at, f"damaged: {entry.damage}", *[""] * (len(_COLUMNS) - 4), writer, "")
    return (
        at,
        entry.name,
        entry.outcome or "",
        entry.error_code or "",
        str(entry.attempts),
        f"{entry.duration_s:.3g} s",
        entry.agent_id or "",
        entry.run_id or "",
        entry.call_id,
        entry.task_id,
        writer,
        entry.arguments[:_SHOWN_CHARS],
    )
