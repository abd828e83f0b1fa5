"""`tarsy-tasks limits`: how much may be called, and how much of it is used."""

import click

import tarsy_tasks
from tarsy_tasks.cli.broker import broker
from tarsy_tasks.cli.output import json_option, print_json, print_table
from tarsy_tasks.errors import TarsyTasksError
from tarsy_tasks.telemetry.limit_report import read_reports, read_use

__all__ = ["limits"]


@click.command()
@click.option("--server", help="Only the limits of this server.")
@json_option
def limits(server: str | None, *, as_json: bool) -> None:
    """Show the limits that the workers keep to, and how far they are used.

    Of a limit that each agent, server or tool has for itself, those that use most of it are shown. What applies to one
    call, and what happens to one that is over a limit, says `tarsy-tasks policy check`.
    """
    lease_s = float(tarsy_tasks.app.conf.broker_transport_options["visibility_timeout"])
    with broker() as redis:
        try:
            found = read_reports(redis)
        except ValueError as error:
            text = f"{error}. Restart the workers, or use the version of `tarsy-tasks` that they have."
            raise TarsyTasksError(text) from None
        shown = [each for each in (found.limits if found else ()) if server is None or server in each.servers]
        used = read_use(redis, shown, lease_s)
    if as_json:
        print_json(
            {
                "policy": found.policy if found is not None else None,
                "limits": [
                    {**each.model_dump(mode="json"), "used": [use.model_dump() for use in used[each.id]]}
                    for each in shown
                ],
            }
        )
        return
    rows = [
        (each.place, each.about, each.rule.terms, each.rule.when_over, use.counter, use.describe(each.rule))
        if use is not None
        else (each.place, each.about, each.rule.terms, each.rule.when_over, "", "unused")
        for each in shown
        for use in used[each.id] or [None]
    ]
    columns = ("limit", "about", "permits", "over it", "counter", "used")
    print_table(columns, rows, nothing="no limits: no worker has a policy with some")
