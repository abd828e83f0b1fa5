"""`tarsy-tasks doctor`: what is wrong with this deployment, and what to do about it."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from redis.exceptions import RedisError

from tarsy_tasks.cli import FAILED, OK, UNAVAILABLE, USAGE
from tarsy_tasks.cli.output import console, json_option, notes, print_json
from tarsy_tasks.doctor.finding import Finding, Severity
from tarsy_tasks.errors import ConfigError

__all__ = ["doctor"]

_STYLES = {Severity.OK: "green", Severity.NOTE: "dim", Severity.WARNING: "yellow", Severity.ERROR: "red"}


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, as_json: bool) -> None:
    """Look at Redis, the configuration, every server's start, versions, clocks, and common mistakes.

    Run it where a worker runs: it reads the same files and variables, and starts each MCP server once. Exit codes: 0
    no errors, 1 errors, 2 the configuration cannot be used, 3 Redis cannot.
    """
    # What goes wrong is told as a finding; the libraries' own words would only be in between.
    logging.getLogger().addHandler(logging.NullHandler())
    findings: list[Finding] = []
    code = OK
    for part_code, part in _examine():
        for finding in part:
            findings.append(finding)
            if finding.severity is Severity.ERROR and code in (OK, FAILED):
                code = part_code
            if not as_json:
                _print(finding)
    if as_json:
        print_json({"ok": code == OK, "findings": [_as_json(finding) for finding in findings]})
    else:
        counts = {each: sum(finding.severity is each for finding in findings) for each in Severity}
        notes.print(f"{counts[Severity.ERROR]} errors, {counts[Severity.WARNING]} warnings", markup=False)
    ctx.exit(code)


def _examine() -> Iterator[tuple[int, Iterable[Finding]]]:
    """What is looked at, one after the other, and the exit code of an error there."""
    from tarsy_tasks.config.inheritance import Inheritance
    from tarsy_tasks.doctor.broker import Unreachable, check_broker, check_url, connect
    from tarsy_tasks.doctor.configuration import check_configuration
    from tarsy_tasks.doctor.deployment import check_deployment
    from tarsy_tasks.doctor.machine import check_machine
    from tarsy_tasks.doctor.server_start import check_starts
    from tarsy_tasks.doctor.settings_file import check_settings_file
    from tarsy_tasks.settings import load_settings

    try:
        url = load_settings().redis_url.get_secret_value()
    except ConfigError as error:
        yield USAGE, [Finding.error("environment", str(error), "mend the variable")]
        return
    config, found = check_configuration()
    yield (FAILED if config is not None else USAGE), found
    yield FAILED, check_settings_file(Path.cwd())
    servers = list(config.enabled_servers.values()) if config is not None else []
    yield FAILED, check_machine(servers)
    yield FAILED, check_url(url)
    try:
        redis = connect(url)
    except Unreachable as error:
        yield UNAVAILABLE, [error.finding]
    else:
        with redis:
            try:
                # Read whole, for Redis may go away meanwhile.
                yield FAILED, list(check_broker(redis))
                yield FAILED, list(check_deployment(redis, servers))
            except RedisError as error:
                yield UNAVAILABLE, [Finding.error("redis", f"it answers no more: {error}", "see what became of it")]
    inheritance = Inheritance(config.servers.values() if config is not None else (), (url,))
    yield FAILED, check_starts(servers, inheritance)


def _print(finding: Finding) -> None:
    console.print(f"{finding.severity:<7} ", style=_STYLES[finding.severity], end="", markup=False)
    console.print(f"{finding.check}: {finding.text}", markup=False)
    if finding.remedy is not None:
        console.print(f"        remedy: {finding.remedy}", markup=False)


def _as_json(finding: Finding) -> dict[str, str | None]:
    return {
        "check": finding.check,
        "severity": finding.severity,
        "text": finding.text,
        "remedy": finding.remedy,
    }
