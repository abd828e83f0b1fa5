"""`tarsy-tasks doctor`: what is wrong with this deployment, and what to do about it."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click
from redis.exceptions import RedisError

from tarsy_tasks.cli import FAILED, OK, UNAVAILABLE, USAGE
from tarsy_tasks.cli.output import busy, console, counted, json_option, notes, print_json
from tarsy_tasks.cli.run_files import find_stack
from tarsy_tasks.doctor.finding import Finding, Severity
from tarsy_tasks.errors import ConfigError

__all__ = ["doctor"]

_STYLES = {Severity.OK: "green", Severity.NOTE: "dim", Severity.WARNING: "yellow", Severity.ERROR: "red"}


@click.command()
@json_option
def doctor(*, as_json: bool) -> None:
    """Check Redis, the configuration, the start of each server, versions, clocks and common mistakes.

    Run it where a worker runs: it reads the same files and variables, and starts each MCP server once. Exit codes: 0 no
    errors, 1 errors, 2 the configuration cannot be used, 3 Redis cannot be reached.
    """
    # Every failure becomes a finding; log lines of libraries would only interrupt them.
    logging.getLogger().addHandler(logging.NullHandler())
    findings: list[Finding] = []
    code = OK
    for part_code, part in _examine():
        for finding in _patiently(part):
            findings.append(finding)
            if finding.severity is Severity.ERROR and code in (OK, FAILED):
                code = part_code
            if not as_json:
                _print(finding)
    if as_json:
        print_json({"ok": code == OK, "findings": list(map(asdict, findings))})
    else:
        counts = {each: sum(finding.severity is each for finding in findings) for each in Severity}
        notes.print(", ".join(counted(counts[each], each) for each in (Severity.ERROR, Severity.WARNING)))
    raise click.exceptions.Exit(code)


def _patiently(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The same, with a spinner while one takes long."""
    iterator = iter(findings)
    while True:
        with busy("checking"):
            finding = next(iterator, None)
        if finding is None:
            return
        yield finding


def _examine() -> Iterator[tuple[int, Iterable[Finding]]]:
    """The checks in their order, each with the exit code of an error in it."""
    from tarsy_tasks.broker.binding import decide_binding
    from tarsy_tasks.config import load_config
    from tarsy_tasks.config.inheritance import Inheritance
    from tarsy_tasks.config.record import find_record
    from tarsy_tasks.doctor.broker import check_binding, check_broker, check_url, connect
    from tarsy_tasks.doctor.configuration import check_configuration
    from tarsy_tasks.doctor.configuration_record import check_record
    from tarsy_tasks.doctor.deployment import check_deployment
    from tarsy_tasks.doctor.machine import check_machine
    from tarsy_tasks.doctor.policy import check_policy, check_users
    from tarsy_tasks.doctor.sandbox import check_sandbox
    from tarsy_tasks.doctor.secret_files import check_secret_files
    from tarsy_tasks.doctor.server_start import check_starts
    from tarsy_tasks.doctor.settings_file import check_settings_file
    from tarsy_tasks.doctor.task_signals import check_task_signals
    from tarsy_tasks.settings import load_settings
    from tarsy_tasks.worker.transport.provided_credentials import build_credential_source

    try:
        settings = load_settings()
        credentials = build_credential_source(settings)
    except ConfigError as error:
        yield USAGE, [Finding.error("environment", str(error), "correct the variable")]
        return
    url = settings.redis_url.get_secret_value()
    stack = find_stack(Path.cwd())
    is_temporary = stack is not None and stack.is_private and stack.redis_url == url
    config, found = check_configuration()
    yield (FAILED if config is not None else USAGE), found
    policy, found = check_policy()
    yield USAGE, found
    yield FAILED, check_settings_file(Path.cwd())
    yield FAILED, check_task_signals(Path.cwd())
    servers = list(config.enabled_servers.values()) if config is not None else []
    names = [server.name for server in servers]
    yield FAILED, check_secret_files(servers, settings)
    yield FAILED, check_machine(servers)
    yield FAILED, check_sandbox(servers)
    yield FAILED, check_url(url)
    yield FAILED, check_binding(settings.canvas, url)
    redis = connect(url)
    if isinstance(redis, Finding):
        yield UNAVAILABLE, [redis]
    else:
        with redis:
            try:
                # As lists: Redis may fail in the middle.
                yield FAILED, list(check_broker(redis, is_temporary=is_temporary))
                if config is not None and (record := find_record(load_config)) is not None:
                    yield FAILED, list(check_record(record, redis, url))
                yield FAILED, list(check_deployment(redis, servers))
                if policy is not None:
                    yield FAILED, list(check_users(policy, redis, decide_binding(settings.canvas, [url]), names))
            except RedisError as error:
                remedy = "check that Redis still runs, and its log"
                yield UNAVAILABLE, [Finding.error("redis", f"it stopped answering: {error}", remedy)]
    inheritance = Inheritance(config.servers.values() if config is not None else (), (url,))
    yield FAILED, check_starts(servers, inheritance, credentials)


def _print(finding: Finding) -> None:
    console.print(f"{finding.severity:<7} ", style=_STYLES[finding.severity], end="")
    console.print(f"{finding.check}: {finding.text}")
    if finding.remedy is not None:
        console.print(f"        remedy: {finding.remedy}")
