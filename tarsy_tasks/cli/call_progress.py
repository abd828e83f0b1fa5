"""A bar for a call on a terminal, and above it the log lines of its server."""

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tarsy_tasks import CallLog, CallProgress, CallRestarted, DeadlineMoved, PendingCall
from tarsy_tasks.cli.output import notes
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["follow"]

_BAR_CHARS = 30


def follow(pending: PendingCall) -> None:
    """Show what happens to a call, until it has ended."""
    # The bar pulses for as long as its total is not known.
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(_BAR_CHARS),
        TextColumn("{task.fields[reached]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=notes, transient=True) as progress:
        bar = progress.add_task(pending.call.name, total=None, reached="")
        for event in pending.events():
            match event:
                case CallProgress():
                    reached = f"{event.progress:g}" + (f"/{event.total:g}" if event.total is not None else "")
                    said = f"{reached} {make_visible(event.message)}".rstrip()
                    progress.update(bar, completed=event.progress, total=event.total or None, reached=said)
                case CallLog():
                    left_out = f" ({event.lost} lines before were left out)" if event.lost else ""
                    progress.print(f"{event.level} {event.logger}".rstrip() + f": {event.text}{left_out}", style="dim")
                case CallRestarted():
                    why = "its worker was lost or stopped" if event.is_other_worker else "its session was lost"
                    progress.print(f"The call is made again, because {why}.", style="dim")
                    progress.reset(bar, total=None, reached="")
                case DeadlineMoved():
                    pass
