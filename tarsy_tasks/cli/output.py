"""How commands print: tables on a terminal, plain lines elsewhere, JSON with `--json`.

Owns the `--json` option and the consoles. Results go to stdout, notes and errors to stderr. Texts may come from MCP
servers: their control characters never reach a terminal.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tarsy_tasks.telemetry.printable import HIDDEN, make_visible

__all__ = [
    "build_table", "console", "dump_json", "json_option", "local_time", "notes", "print_json", "print_line",
    "print_table",
]  # fmt: skip

_LAYOUT = "\n\t"


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(make_visible(text, keep=_LAYOUT), **options)


console = _Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
notes = _Console(stderr=True, highlight=False, soft_wrap=True, emoji=False, markup=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """A value as JSON, without escapes for letters of any language; hidden characters are escaped."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return HIDDEN.sub(lambda found: found[0] if found[0] == "\n" else json.dumps(found[0])[1:-1], text)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(dump_json(value, indent=2))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows: a table on a terminal, elsewhere a line of tab-separated cells per row."""
    if not console.is_terminal:
        for row in rows:
            print_line(row)
        return
    console.print(build_table(columns, rows))


def print_line(row: Sequence[str]) -> None:
    """Print one row as a line of tab-separated cells."""
    click.echo("\t".join(make_visible(" ".join(cell.split())) for cell in row))


def local_time(seconds: float, separator: str = " ", timespec: str = "seconds") -> str:
    """Seconds since the epoch as date and time in this machine's time zone, with its offset."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(separator, timespec)


def build_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Rows as a table for a terminal."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        # Text, not markup: a tool's description may hold square brackets.
        table.add_row(*(Text(make_visible(cell, keep=_LAYOUT)) for cell in row))
    return table
