"""`tarsy-tasks ready` and `alive`: a worker's probes for Kubernetes and Docker, answered by exit code."""

from contextlib import suppress
from typing import Any

import click
from redis.exceptions import RedisError

from tarsy_tasks.cli import FAILED, UNAVAILABLE
from tarsy_tasks.cli.output import json_option, notes, print_json
from tarsy_tasks.cli.run_files import explain_missing_stack
from tarsy_tasks.run_dir import run_dir
from tarsy_tasks.telemetry.printable import make_visible
from tarsy_tasks.telemetry.probes import STALE_S, ProbeFiles, find_workers

__all__ = ["alive", "ready"]

_REDIS_S = 2.0

name_option = click.option(
    "-n",
    "--name",
    help="Node name of the worker. Default: all workers of this deployment on this machine.",
)


@click.command()
@click.option("--fleet", is_flag=True, help="Check that each required MCP server has a worker anywhere and is healthy.")
@name_option
@json_option
def ready(name: str | None, *, fleet: bool, as_json: bool) -> None:
    """Check that the workers on this machine take calls. Exit code 1 if not, 3 without Redis (--fleet)."""
    if not fleet:
        problems = {files.worker: _why_not_ready(files) for files in find_workers(name)}
        _answer(problems, as_json=as_json, missing=_why_no_worker(name))
        return
    if name is not None:
        raise click.UsageError("--fleet checks all workers: use it without --name")
    try:
        problems = _fleet_problems()
    except RedisError as error:
        notes.print(f"Redis could not be reached, so the fleet is unknown: {error}", style="red")
        raise click.exceptions.Exit(UNAVAILABLE) from None
    _answer(problems, as_json=as_json, nothing="no MCP server is required")


@click.command()
@name_option
@json_option
def alive(name: str | None, *, as_json: bool) -> None:
    """Check that the worker's two critical threads respond. Exit code 1 if not.

    One takes messages from Redis, the other runs the MCP sessions. While Redis does not answer, the first one is not
    checked: a restart would not help.
    """
    problems = {files.worker: _why_not_alive(files) for files in find_workers(name)}
    _answer(problems, as_json=as_json, missing=_why_no_worker(name))


def _answer(problems: dict[str, str | None], *, as_json: bool, nothing: str = "", missing: str = "") -> None:
    """Print the problem of each worker or server, and end with exit code 1 if there is one.

    Args:
        nothing: Printed when there is nothing to check, and that is fine.
        missing: Printed when there is nothing to check, and that is a problem.
    """
    fine = not any(problems.values()) and (bool(problems) or not missing)
    if as_json:
        print_json({"ok": fine, "problems": problems})
    elif not problems and not fine:
        notes.print(missing, style="red")
    else:
        for each, problem in problems.items():
            click.echo(make_visible(f"{each}: {problem or 'ok'}"))
        if not problems:
            click.echo(nothing)
    if not fine:
        raise click.exceptions.Exit(FAILED)


def _why_no_worker(name: str | None) -> str:
    """Said where no worker, or none of that name, was found."""
    others = ", ".join(files.worker for files in find_workers())
    if name is not None and others:
        return f"no worker {name} runs here; the workers that do: {others}"
    text = f"no worker runs here: no probe files in {run_dir()} belong to the Redis of TARSY_REDIS_URL"
    return f"{text}. {why}" if (why := explain_missing_stack()) else text


def _why_not_ready(files: ProbeFiles) -> str | None:
    return None if files.ready.exists() else "takes no calls: it is starting or stopping"


def _why_not_alive(files: ProbeFiles) -> str | None:
    silent_s = files.seconds_since(files.sessions)
    if silent_s is None or silent_s > STALE_S:
        return f"its session loop has not responded {_for(silent_s)}"
    if not files.ready.exists():
        return None  # it is stopping and takes no more messages
    silent_s = files.seconds_since(files.consumer)
    if silent_s is not None and silent_s > STALE_S and _redis_answers():
        return f"it has not taken messages {_for(silent_s)} although Redis answers"
    return None


def _for(seconds: float | None) -> str:
    return "at all" if seconds is None else f"for {seconds:.0f} s"


def _redis_answers() -> bool:
    with suppress(RedisError):
        return bool(_redis().ping())
    return False


def _redis() -> Any:
    """A client with a short timeout: the prober's own timeout must not come first."""
    import tarsy_tasks

    return tarsy_tasks.app.backend.build_client(_REDIS_S)


def _fleet_problems() -> dict[str, str | None]:
    """The problem of each required server."""
    from tarsy_tasks.broker.fleet import serving_workers
    from tarsy_tasks.config import load_config
    from tarsy_tasks.telemetry.health_records import HealthStatus, read_health

    required = [server.name for server in load_config().enabled_servers.values() if server.required]
    redis = _redis()
    serving = serving_workers(redis, required)
    health = read_health(redis, required)

    def problem(server: str) -> str | None:
        if not serving[server]:
            return "no worker serves it"
        # If only some workers cannot use it, calls still succeed on the others.
        usable = health[server].status in (HealthStatus.HEALTHY, HealthStatus.DEGRADED)
        return None if usable else f"{health[server].status}: {health[server].reason}"

    return {server: problem(server) for server in required}
