"""`python -m tests.chaos`: every fault in its full length, and the table."""

import logging
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.chaos.load import Tally
from tests.chaos.rows import ROWS, Row, Theatre, chosen, soaking
from tests.chaos.stage import LONG, SHORT


@click.command()
@click.option("--only", multiple=True, metavar="ROW", type=click.Choice([row.name for row in ROWS]), help="Repeatable.")
@click.option("--short", is_flag=True, help="The leases and faults of the test suite.")
@click.option(
    "--soak", "minutes", type=float, metavar="MINUTES", help="Random faults for so long, in place of the rows."
)
@click.option("--seed", type=int, help="Of the random faults; printed, so that they can be had again.")
@click.option("--list", "lists", is_flag=True, help="Print the rows and end.")
def main(only: tuple[str, ...], short: bool, minutes: float | None, seed: int | None, lists: bool) -> None:
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
        rows = chosen(only) if minutes is None else [soaking(minutes, seed or random.randrange(1_000_000))]
        for row in rows:
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
