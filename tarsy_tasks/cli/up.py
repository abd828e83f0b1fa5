"""`tarsy-tasks up`: worker, beat and Flower on this machine, with the user's configuration."""

from contextlib import suppress
from pathlib import Path

import click
from rich.text import Text

from tarsy_tasks.broker.redis_url import hide_password
from tarsy_tasks.cli import FAILED
from tarsy_tasks.cli.output import console, notes
from tarsy_tasks.cli.stack import Stack
from tarsy_tasks.config import find_config_path, load_config

__all__ = ["up"]

_COLOURS = {"worker": "cyan", "beat": "magenta", "flower": "green"}


@click.command()
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--redis-url", envvar="TARSY_REDIS_URL", help="Redis to use. Default: start a private Valkey.")
@click.option(
    "--flower-port",
    type=click.IntRange(0, 65535),
    default=5555,
    show_default=True,
    help="Port of Flower on 127.0.0.1; 0 to start without Flower.",
)
@click.option("-c", "--concurrency", default=256, show_default=True, help="Calls that the worker runs at once.")
@click.option("-l", "--loglevel", default="INFO", show_default=True, help="Log level of all processes.")
def up(
    config_path: Path | None,
    redis_url: str | None,
    flower_port: int,
    concurrency: int,
    loglevel: str,
) -> None:
    """Run worker, beat and Flower until Ctrl-C."""
    path = (config_path or find_config_path()).resolve()
    servers = load_config(path).enabled_servers
    environment = {"TARSY_MCP_CONFIG": str(path), "TARSY_STARTUP": "degraded"}
    if redis_url:
        environment["TARSY_REDIS_URL"] = redis_url
    with Stack(environment, _print_line) as stack:
        try:
            where = redis_url or stack.start_valkey()
            notes.print(f"servers: {', '.join(servers) or 'none'}; Redis: {hide_password(where)}")
            stack.start_celery("worker", "worker", "-l", loglevel, "-c", str(concurrency), "-E")
            stack.start_celery("beat", "beat", "-l", loglevel)
            if flower_port:
                notes.print(f"dashboard: {stack.start_flower(flower_port)}", soft_wrap=True)
            if not redis_url:
                notes.print(f"agents on this machine: export TARSY_REDIS_URL={where}", soft_wrap=True)
            service = stack.wait()
        except KeyboardInterrupt:
            notes.print("stopping")
            return
        assert service is not None
        notes.print(f"{service.name} ended with code {service.process.returncode}; stopping the others", style="red")
    raise click.exceptions.Exit(FAILED)


def _print_line(name: str, line: str) -> None:
    with suppress(OSError):  # the reader may be gone; the process that printed this must not block
        console.print(Text.assemble((f"{name:<7}", _COLOURS.get(name, "")), " ", line))
