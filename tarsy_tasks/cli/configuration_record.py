"""`tarsy-tasks servers publish` and `history`: the configuration in Redis as a whole, and its versions."""

from datetime import UTC, datetime
from pathlib import Path

import click

from tarsy_tasks.cli.output import json_option, print_json, print_table
from tarsy_tasks.operators import Operator

__all__ = ["history", "publish"]


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--digest", help="Of what is in Redis as you have seen it; refused if somebody has changed it since.")
@json_option
def publish(path: Path, digest: str | None, *, as_json: bool) -> None:
    """Make the file at PATH the configuration in Redis (`TARSY_MCP_CONFIG=redis`), for all parts of the deployment."""
    operator = Operator()
    written = operator.publish(path, digest=digest)
    if as_json:
        print_json({"path": operator.place, "digest": written})
    else:
        click.echo(f"{operator.place}: it is {written} now. Workers that read it take it within 5 s")


@click.command()
@click.option("--show", type=int, metavar="NUMBER", help="Print the text of this version, which `publish` takes.")
@json_option
def history(show: int | None, *, as_json: bool) -> None:
    """The versions of the configuration in Redis: when, who, and what changed."""
    found = Operator().history()
    if show is not None:
        text = next((version.text for version in found if version.number == show), None)
        if text is None:
            raise click.UsageError(f"there is no version {show} among the latest {len(found)}")
        click.echo(text, nl=False)
    elif as_json:
        print_json([version.model_dump(exclude={"v", "text"}) for version in found])
    else:
        rows = [
            (str(each.number), f"{datetime.fromtimestamp(each.at, UTC):%F %T}", each.who, each.change, each.digest)
            for each in found
        ]
        columns = ("version", "written (UTC)", "who", "change", "digest")
        print_table(columns, rows, nothing="Redis has no configuration yet")
