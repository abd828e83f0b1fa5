"""How commands print: rich tables on a terminal, plain lines elsewhere, JSON when asked.

Owns the `--json` option and the consoles. Results go to stdout, everything about how it went to stderr.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["build_table", "console", "json_option", "notes", "print_json", "print_line", "print_table"]

console = Console(highlight=False, soft_wrap=True)
notes = Console(stderr=True, highlight=False, soft_wrap=True)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows: a table on a terminal, one line of tab-separated cells a row elsewhere."""
    if not console.is_terminal:
        for row in rows:
            print_line(row)
        return
    console.print(build_table(columns, rows))


def print_line(row: Sequence[str]) -> None:
    """Print one row as a line of tab-separated cells."""
    click.echo("\t".join(_visible(" ".join(cell.split())) for cell in row))


def build_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Rows as a table for a terminal."""
    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        # Text, not markup: a tool's description may hold square brackets.
        table.add_row(*(Text(_visible(cell)) for cell in row))
    return table


def _visible(cell: str) -> str:
    """A text of somebody else's, without what a terminal would take for a command."""
    return cell if cell.isprintable() else "".join(each if each.isprintable() or each == "\n" else "�" for each in cell)
