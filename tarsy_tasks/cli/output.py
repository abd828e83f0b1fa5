"""How commands print: tables on a terminal, plain lines elsewhere, JSON with `--json`.

Owns the `--json` option and the consoles. Results go to stdout, notes and errors to stderr. Texts may come from MCP
servers: their control characters never reach a terminal.
"""

import json
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console, Group
from rich.text import Text

from tarsy_tasks.cli.tables import TableLayout
from tarsy_tasks.telemetry.printable import HIDDEN, make_visible

__all__ = [
    "build_table", "busy", "clock_time", "console", "counted", "dump_json", "json_option", "local_time", "notes",
    "print_json", "print_line", "print_table",
]  # fmt: skip

_LAYOUT = "\n\t"
_PATIENCE_S = 1.0


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(make_visible(text, keep=_LAYOUT), **options)


console = _Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
notes = _Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def busy(what: str) -> Generator[None]:
    """A spinner on a terminal's stderr, once this takes more than a second."""
    status = notes.status(what)
    timer = threading.Timer(_PATIENCE_S, status.start)
    timer.daemon = True
    if notes.is_terminal:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()
        status.stop()


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 server, 2 servers."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON, without escapes for letters of any language; hidden characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(dump_json(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, nothing: str = "nothing to show") -> None:
    """Print rows: a table on a terminal, elsewhere a line of tab-separated cells per row.

    Args:
        nothing: Said on stderr when there are no rows.
    """
    shown = list(rows)
    if not shown:
        notes.print(nothing, style="dim")
    elif console.is_terminal:
        console.print(build_table(columns, shown))
    else:
        for row in shown:
            print_line(row)


def print_line(row: Sequence[str]) -> None:
    """Print one row as a line of tab-separated cells."""
    click.echo("\t".join(make_visible(" ".join(cell.split())) for cell in row))


def local_time(seconds: float, separator: str = " ", timespec: str = "seconds") -> str:
    """Seconds since the epoch as date and time in this machine's time zone, with its offset."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(separator, timespec)


def clock_time(seconds: float) -> str:
    """Seconds since the epoch as the time of day here, with the date if it is not today."""
    at = datetime.fromtimestamp(seconds, UTC).astimezone()
    is_today = at.date() == datetime.now(UTC).astimezone().date()
    return at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def build_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Group:
    """Rows as a table for a terminal."""
    layout = TableLayout(columns, rows, console.width)
    return Group(layout.header(), *(line for row in rows for line in layout.render(row, console)))
