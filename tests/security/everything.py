"""All that anybody could read of a deployment while it runs, and afterwards: as texts, by where they stand.

Owns where there is something to read. What it looks for, `tests.plants` knows; what happens meanwhile, the test.
"""

import logging
import threading
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

import psutil
import redis

from tarsy_tasks.celery_app import build_app
from tests.cli.commands import run_command
from tests.processes import Flower, Worker, read_command

__all__ = [
    "Seen",
    "inspect_worker",
    "listen_to_channels",
    "listen_to_logs",
    "read_command_lines",
    "read_files",
    "read_flower",
    "read_page",
    "run_commands",
]

Seen = dict[str, bytes]
"""Texts by where they were read."""

_INSPECTED = ("active", "active_queues", "conf", "ping", "registered", "report", "reserved", "scheduled", "stats")


@contextmanager
def listen_to_channels(url: str) -> Iterator[list[bytes]]:
    """Every message of every channel, among them Celery's events; each with its channel."""
    heard: list[bytes] = []
    is_over = threading.Event()
    with redis.Redis.from_url(url) as client, client.pubsub(ignore_subscribe_messages=True) as channels:
        channels.psubscribe("*")

        def listen() -> None:
            while not is_over.is_set():
                if message := channels.get_message(timeout=0.2):
                    heard.append(b"%s\n%s" % (message["channel"], message["data"]))

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield heard
        finally:
            is_over.set()
            thread.join()


@contextmanager
def listen_to_logs() -> Iterator[list[bytes]]:
    """Every line that is logged in this process, as the default format has it."""
    heard: list[bytes] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(f"{record.name}: {self.format(record)}".encode())

    root, listener = logging.getLogger(), Listener()
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    try:
        yield heard
    finally:
        root.setLevel(level)
        root.removeHandler(listener)


def inspect_worker(url: str, name: str, task_ids: Iterable[str] = ()) -> Seen:
    """What `celery inspect` prints of a worker."""
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        inspect = app.control.inspect([name], timeout=10, limit=1)
        answers: dict[str, Any] = {what: getattr(inspect, what)() for what in _INSPECTED}
        answers["query_task"] = inspect.query_task(*task_ids)
        answers["mcp_sessions"] = app.control.broadcast(
            "mcp_sessions", destination=[name], reply=True, limit=1, timeout=10
        )
    return {f"inspect {what}": repr(answer).encode() for what, answer in answers.items()}


def run_commands(worker: Worker, commands: Iterable[str]) -> Seen:
    """What commands of the package print, to whatever end they come."""

    def run(words: str) -> bytes:
        environment = {**worker.environment, "COLUMNS": "1000"}
        done = run_command(*words.split(), environment=environment, cwd=worker.log_path.parent)
        return (done.stdout + done.stderr).encode()

    return {f"tarsy-tasks {words}": run(words) for words in commands}


def read_flower(flower: Flower, servers: Iterable[str], calls: Iterable[str], workers: Iterable[str]) -> Seen:
    """Flower's own pages and data, and those of the MCP servers."""
    paths = ["/", "/workers", "/broker", "/tasks", "/metrics", "/mcp", "/mcp?live", "/mcp/calls", "/mcp/calls?live"]
    paths += ["/api/workers?refresh=1", "/api/tasks", "/api/task/types", "/api/queues/length"]
    paths += ["/mcp/api/servers", "/mcp/api/calls", f"/tasks/datatable?{_DATATABLE}"]
    paths += [f"/worker/{quote(name)}" for name in workers]
    paths += [f"{page}/{name}" for name in servers for page in ("/mcp/servers", "/mcp/api/servers")]
    for call in map(quote, calls):
        paths += [f"/task/{call}", f"/api/task/info/{call}", f"/api/task/result/{call}"]
        paths += [f"/mcp/calls/{call}", f"/mcp/api/calls/{call}"]
    return {f"Flower {path}": read_page(f"{flower.url}{path}") for path in paths}


_DATATABLE = urlencode(
    {
        "draw": 1, "start": 0, "length": 100, "search[value]": "",
        "order[0][column]": 0, "order[0][dir]": "asc", "columns[0][data]": "name",
    }
)  # fmt: skip


def read_page(url: str) -> bytes:
    """A page, also one that says that it cannot be had."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read()
    except HTTPError as error:
        return b"HTTP %d\n" % error.code + error.read()


def read_command_lines(processes: Mapping[str, psutil.Process]) -> Seen:
    """What `ps` shows of processes and of all that they started."""
    found: Seen = {}
    for name, process in processes.items():
        for each in (process, *process.children(recursive=True)):
            found[f"ps {name} {each.pid}"] = "\n".join(read_command(each)).encode()
    return found


def read_files(directory: Path, but: Iterable[str] = ()) -> Seen:
    """Every file below a directory, without those of some names."""
    return {
        f"file {path.relative_to(directory)}": path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and path.name not in but
    }
