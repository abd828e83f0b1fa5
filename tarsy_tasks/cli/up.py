"""`tarsy-tasks up`: worker, beat and Flower on this machine, with the user's configuration."""

import asyncio
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import click
from rich.text import Text

from tarsy_tasks.broker.redis_url import hide_password
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.known_names import remember_names
from tarsy_tasks.cli.output import busy, console, counted, notes
from tarsy_tasks.cli.run_files import REDIS_URL_FILE, RunningStack, open_stack_dir, stack_dir, write_stack
from tarsy_tasks.cli.stack import Service, Stack, free_port
from tarsy_tasks.cli.stack_logs import StackLogs
from tarsy_tasks.cli.up_summary import Summary
from tarsy_tasks.config import describe_unused, find_config_path, load_config
from tarsy_tasks.config.record import IN_REDIS
from tarsy_tasks.errors import BrokerUnavailable, ConfigError
from tarsy_tasks.settings import load_settings

__all__ = ["up"]

_COLOURS = {"worker": "cyan", "beat": "magenta", "flower": "green"}
_POLL_S = 0.2


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--redis-url", help="Redis to use. Default: that of TARSY_REDIS_URL, else a private Valkey.")
@click.option(
    "--flower-port",
    type=click.IntRange(0, 65535),
    default=5555,
    show_default=True,
    help="Port of Flower on 127.0.0.1; 0 to start without Flower.",
)
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Calls that the worker runs at once.",
)
@click.option(
    "-l",
    "--loglevel",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], case_sensitive=False),
    default="INFO",
    show_default=True,
    help="Log level of all processes.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print what the processes log, too.")
def up(
    *,
    config_path: Path | None,
    redis_url: str | None,
    flower_port: int,
    concurrency: int,
    loglevel: str,
    verbose: bool,
) -> None:
    """Run worker, beat and Flower until Ctrl-C, and show which MCP servers work.

    Other commands in the same directory use what runs here. The summary is printed to stdout; progress, notes and the
    logs of -v to stderr. Exit codes: 1 a process ended, 2 wrong usage or configuration, 3 Redis cannot be reached.
    """
    directory = Path.cwd()
    if config_path is None and load_settings().mcp_config == IN_REDIS:
        raise ConfigError(
            "`up` runs with a file, and TARSY_MCP_CONFIG names the configuration in Redis: write that to a file with "
            "`tarsy-tasks servers export > mcp.json`, and name it with --config"
        )
    path = (config_path or find_config_path()).resolve()
    servers = load_config(path).enabled_servers
    configured_url = _configured_redis(redis_url, directory)
    if flower_port:
        _check_port(flower_port)
    with open_stack_dir(directory) as files:
        logs = StackLogs(files)

        def log(name: str, line: str) -> None:
            logs.write(name, line)
            if verbose:
                _print_line(name, line)

        # Of this process, too: it asks the servers as an agent does.
        os.environ.update(TARSY_MCP_CONFIG=str(path), TARSY_STARTUP="degraded")
        with Stack({}, log) as stack:
            try:
                url = configured_url or stack.start_valkey()
                os.environ["TARSY_REDIS_URL"] = stack.environment["TARSY_REDIS_URL"] = url
                stack.start_celery("worker", "worker", "-l", loglevel, "-c", str(concurrency), "-E")
                stack.start_celery("beat", "beat", "-l", loglevel)
                link = stack.start_flower(flower_port) if flower_port else ""
                write_stack(
                    files, RunningStack(str(directory), str(path), url, os.getpid(), is_private=not configured_url)
                )
                remember_names(servers, {})
                private = "" if configured_url else "a private Valkey, "
                if not servers:
                    notes.print(f"{path}: no server is enabled; add one to `mcpServers`, and start this again")
                for line in describe_unused(path):
                    notes.print(line)
                console.print(
                    f"{path}: {counted(len(servers), 'server')} enabled; Redis: {private}{hide_password(url)}"
                )
                summary = Summary(tuple(servers), directory, path, files, logs.path("worker"), link)
                ended = asyncio.run(_watch(stack, summary, is_quiet=not verbose))
            except KeyboardInterrupt:
                with busy("stopping"):
                    stack.stop()
                return
            _print_end(ended, logs)
    raise click.exceptions.Exit(FAILED)


def _configured_redis(url: str | None, directory: Path) -> str | None:
    """The URL of the Redis that is configured, once it answers; None if `up` starts one.

    Raises:
        ConfigError: A variable is wrong.
        BrokerUnavailable: It does not answer.
    """
    from tarsy_tasks.doctor.broker import connect
    from tarsy_tasks.doctor.finding import Finding

    if url:
        os.environ["TARSY_REDIS_URL"] = url
    if os.environ.get("TARSY_REDIS_URL_FILE") == str(stack_dir(directory) / REDIS_URL_FILE):
        # What an earlier `up` printed for agents: it names the Redis that this one starts.
        del os.environ["TARSY_REDIS_URL_FILE"]
    settings = load_settings()
    if not any(map(os.environ.get, ("TARSY_REDIS_URL", "TARSY_REDIS_URL_FILE"))):
        return None
    found = settings.redis_url.get_secret_value()
    client = connect(found)
    if isinstance(client, Finding):
        remedy = "Start it, or correct TARSY_REDIS_URL, or unset it: then `up` starts a private Valkey."
        raise BrokerUnavailable(f"Redis could not be reached: {client.text.rstrip('.')}. {remedy}")
    client.close()
    return found


def _check_port(port: int) -> None:
    """Raises ConfigError if Flower cannot listen there."""
    with socket.socket() as probe:
        # As Flower does: connections that have just ended do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"port {port} of 127.0.0.1 cannot be used for the dashboard: {(error.strerror or str(error)).lower()}. "
                f"Choose another one, such as --flower-port {free_port()}, or 0 for no dashboard"
            ) from None


async def _watch(stack: Stack, summary: Summary, *, is_quiet: bool) -> Service:
    """Show which servers work, until a process ends by itself; returns it."""
    from tarsy_tasks.cli.first_calls import check_server

    async def follow(server: str) -> None:
        async for found in check_server(server):
            summary.show(found)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow(server)) for server in summary.servers]
        status = notes.status("starting")
        try:
            if is_quiet:
                status.start()
            while (ended := stack.ended()) is None:
                if summary.is_due:
                    status.stop()
                    summary.show_next_steps()
                elif summary.waiting:
                    status.update(f"waiting for {', '.join(summary.waiting)}")
                await asyncio.sleep(_POLL_S)
        finally:
            status.stop()
            for task in tasks:
                task.cancel()
    return ended


def _print_end(ended: Service, logs: StackLogs) -> None:
    last: Collection[str] = ended.last_lines
    for line in last:
        notes.print(line, style="dim")
    text = f"{ended.name} ended with code {ended.process.returncode}; stopping the others. Its log: "
    notes.print(f"{text}{logs.path(ended.name)}", style="red", soft_wrap=True)


def _print_line(name: str, line: str) -> None:
    with suppress(OSError):  # the reader may be gone; the process that printed this must not block
        notes.print(Text.assemble((f"{name:<7}", _COLOURS.get(name, "")), " ", line))
