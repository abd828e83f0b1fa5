"""`python -m tests.chaos`: every fault in its full length, and the table."""

import logging
import signal
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.chaos.load import Tally
from tests.chaos.rows import ROWS, Row, Theatre, chosen
from tests.chaos.stage import LONG, SHORT


@click.command()
@click.option("--only", multiple=True, metavar="ROW", type=click.Choice([row.name for row in ROWS]), help="Repeatable.")
@click.option("--short", is_flag=True, help="The leases and faults of the test suite.")
@click.option("--list", "lists", is_flag=True, help="Print the rows and end.")
def main(only: tuple[str, ...], short: bool, lists: bool) -> None:
    """Play each fault under load; exit with 1 if something does not hold."""
    if lists:
        for row in ROWS:
            click.echo(f"{row.name:16} {row.fault}")
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.disable(logging.WARNING)  # an agent says so each time when Redis is gone
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    played: list[tuple[Row, Tally]] = []
    with Theatre(SHORT if short else LONG, directory) as theatre:
        for row in chosen(only):
            started = time.monotonic()
            tally = theatre.play(row)
            played.append((row, tally))
            click.echo(f"{row.name}: {'pass' if not tally.findings else 'FAIL'} in {time.monotonic() - started:.0f} s")
            for line in tally.findings:
                click.echo(f"  - {line}")
            for line in tally.notes:
                click.echo(f"    {line}")
        problems = theatre.clear()
    print_table(played)
    for problem in problems:
        click.echo(problem)
    failed = problems or any(tally.findings for _, tally in played)
    if failed:
        click.echo(f"logs: {directory}")
    sys.exit(1 if failed else 0)


def print_table(played: list[tuple[Row, Tally]]) -> None:
    table = Table("fault")
    for column in ("calls", "ok", "unknown", "unavailable", "lost", "doubled", "longest wait"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for row, tally in played:
        counts = [tally.calls, tally.outcomes["ok"], tally.outcomes["unknown"]]
        counts += [tally.outcomes["unavailable"] + tally.outcomes["refused"], tally.lost, tally.doubled]
        verdict = "FAIL" if tally.findings else "pass"
        table.add_row(row.fault, *map(str, counts), f"{tally.longest_s:.1f} s", verdict)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
