"""`tarsy-tasks up`, what it prints, and how other commands find what it runs."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import psutil
import pytest
import redis
from click.testing import CliRunner

from tarsy_tasks.cli import main
from tests.cli.commands import TARSY_TASKS, clean_environment, run_command
from tests.cli.terminal import Terminal
from tests.processes import DEMO_SERVER, ServiceProcess, free_port, read_command, wait_until

CLOCK = """
import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("clock", version="1.0")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def now() -> str:
    if "stopped" in sys.argv:
        raise ToolError("no hand moves")
    return "noon"

@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def get_env() -> str:
    raise SystemExit("a tool was called that may disclose a secret")

@server.tool()
def strike() -> str:
    raise SystemExit("a tool was called that is not harmless")

server.run("stdio")
"""


UVX = """#!/bin/sh
# `uvx PACKAGE`: what is not there yet is downloaded first, which takes too long.
if [ "$1" = small ] && [ -e "$0.begun" ]; then exec {python} {clock}; fi
[ "$1" = small ] && : > "$0.begun"
exec sleep 600
"""


class Stack(ServiceProcess):
    """`tarsy-tasks up` in a directory of its own, once it has printed everything."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        (directory / "clock.py").write_text(CLOCK)
        servers = {
            "alarm": {"command": sys.executable, "args": [str(directory / "clock.py"), "stopped"]},
            "clock": {"command": sys.executable, "args": [str(directory / "clock.py")]},
            "desk": DEMO_SERVER,
            "live": {"url": "ws://127.0.0.1:1/mcp"},
            "broken": {
                "command": sys.executable,
                "args": ["-c", f"import os; raise SystemExit(f'{'words ' * 90}{{os.getpid():09}} nothing-here')"],
            },
        }
        (directory / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
        self.environment = clean_environment(
            XDG_STATE_HOME=str(directory / "state"), TARSY_RUN_DIR=str(directory / "run")
        )
        # Its log is stdout alone.
        command = ["sh", "-c", f"exec {TARSY_TASKS} up --flower-port {self.port} 2>errors.log"]
        super().__init__(command, directory / "up.log", self.environment, directory)
        self.wait_for_log("Ctrl-C stops everything")

    def type(self, line: str, **added: str) -> subprocess.CompletedProcess[str]:
        """A line in another terminal in the same directory."""
        return run_command(
            *shlex.split(line.strip())[1:], environment={**self.environment, **added}, cwd=self.directory
        )


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(tmp_path_factory.mktemp("up")) as stack:
        yield stack
        said = [re.sub(r"\d+", "", line) for line in stack.log.splitlines() if line.startswith("broken")]
        assert all(one != next_one for one, next_one in pairwise(said)), "other numbers are nothing new"
        assert stack.stop(signal.SIGINT) == 0
    (files,) = (stack.directory / "state" / "tarsy-tasks").iterdir()
    assert {path.name for path in files.iterdir()} >= {"worker.log", "beat.log", "flower.log", "names.json"}
    assert not [name for name in ("stack.json", "redis-url") if (files / name).exists()]


def test_each_server_has_a_line_that_says_whether_it_works(stack: Stack) -> None:
    assert re.search(r"^clock   works  3 tools; clock\.now answered in \d+ ms$", stack.log, re.MULTILINE)
    assert re.search(r"^alarm   works  3 tools; alarm\.now: .*no hand moves", stack.log, re.MULTILINE)
    assert re.search(r"^desk    works  5 tools$", stack.log, re.MULTILINE)
    assert re.search(r"^broken  fails  .*nothing-here", stack.log, re.MULTILINE)
    assert len(stack.log.splitlines()) < 20, "what the processes log is not in it"
    assert (stack.directory / "errors.log").read_text().strip().endswith("which workers do not support: live")


def test_the_log_of_the_worker_is_in_the_file_that_is_named(stack: Stack) -> None:
    path = Path(stack.log.split("\nlog: ")[1].splitlines()[0])
    assert " ready." in path.read_text()
    assert {each.stat().st_mode & 0o077 for each in (path, path.parent, *path.parent.iterdir())} == {0}


def test_the_link_opens_the_dashboard(stack: Stack) -> None:
    link = stack.log.split("dashboard: ")[1].split()[0]
    assert link.startswith(f"http://127.0.0.1:{stack.port}/")
    assert (_status(link), _status(f"http://127.0.0.1:{stack.port}/mcp")) == (200, 403)


def test_what_is_printed_to_type_next_works(stack: Stack) -> None:
    tools, call, doctor = stack.log.split("in this directory:\n")[1].splitlines()[:3]
    assert "clock.now\t" in stack.type(tools).stdout
    assert stack.type(call).stdout.strip() == "noon"
    diagnosis = stack.type(doctor).stdout
    assert "nothing-here" in diagnosis
    assert "ok      redis persistence: the private Valkey of `tarsy-tasks up` keeps nothing" in diagnosis


def test_an_agent_works_with_the_line_that_is_printed_for_it(stack: Stack) -> None:
    name, _, value = stack.log.split("  export ")[1].splitlines()[0].partition("=")
    code = "from tarsy_tasks import ToolExecutor; print(ToolExecutor().execute('clock.now').content)"
    environment = {**stack.environment, name: value}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=stack.directory, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "noon", done.stderr


def test_the_private_valkey_asks_for_a_password(stack: Stack) -> None:
    url = stack.log.split("a private Valkey, ")[1].splitlines()[0]
    with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(url) as client:
        client.ping()


def test_nothing_of_it_listens_for_other_machines(stack: Stack) -> None:
    sockets = [socket for process in psutil.Process(stack.pid).children() for socket in process.net_connections("inet")]
    addresses = [socket.laddr for socket in sockets if socket.status == psutil.CONN_LISTEN]
    assert {address.ip for address in addresses} == {"127.0.0.1"}
    assert stack.port in {address.port for address in addresses}


def test_the_dashboard_refuses_other_host_names(stack: Stack) -> None:
    link = stack.log.split("dashboard: ")[1].split()[0]
    assert _status(Request(link, headers={"Host": "evil.example.com"})) == 421


def test_a_redis_that_is_named_goes_before_the_stack(stack: Stack) -> None:
    done = stack.type("tarsy-tasks audit", TARSY_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert done.returncode == 3
    assert "tarsy-tasks up" not in done.stderr


def test_in_another_directory_the_right_one_is_named(stack: Stack, tmp_path: Path) -> None:
    done = run_command("audit", environment=stack.environment, cwd=tmp_path)
    assert done.returncode == 3
    assert f"but in {stack.directory}" in done.stderr


def test_a_second_stack_in_the_same_directory_is_refused(stack: Stack) -> None:
    done = stack.type(f"tarsy-tasks up --flower-port {free_port()}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert f"already runs in {stack.directory}, process {stack.pid};" in done.stderr


def test_a_taken_port_is_one_line(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    done = run_command("up", "--flower-port", str(stack.port), environment=stack.environment, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done
    assert f"port {stack.port}" in done.stderr
    assert "--flower-port" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-c", "0"], "0 is not in the range x>=1"),
        (["-l", "LOUD"], "'LOUD' is not one of"),
        (["--flower-prot", "1"], "Did you mean '--flower-port'?"),
    ],
)
def test_a_wrong_option_ends_it_before_anything_starts(words: list[str], text: str) -> None:
    shown = CliRunner().invoke(main, ["up", *words])
    assert (shown.exit_code, text in shown.stderr) == (2, True), shown.output


@pytest.mark.parametrize(
    ("url", "code", "text"),
    [
        ("redis://:hunter2-hunter2@127.0.0.1:1/0", 3, "127.0.0.1:1 does not answer"),
        ("http://hunter2-hunter2", 2, "TARSY_REDIS_URL: not valid"),
    ],
)
def test_a_redis_that_cannot_be_used_is_one_line(tmp_path: Path, url: str, code: int, text: str) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {}}')
    environment = clean_environment(XDG_STATE_HOME=str(tmp_path))
    done = run_command("up", "--redis-url", url, environment=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done
    assert text in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tarsy-tasks tools list d", ["desk"]),
        ("tarsy-tasks health c", ["clock"]),
        ("tarsy-tasks call clock.", ["clock.get_env", "clock.now", "clock.strike"]),
        ("tarsy-tasks he", ["health"]),
    ],
)
def test_a_shell_completes_servers_and_tools(stack: Stack, words: str, completed: list[str]) -> None:
    shell = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_TARSY_TASKS_COMPLETE": "bash_complete"}
    done = subprocess.run(
        [TARSY_TASKS], env={**stack.environment, **shell}, cwd=stack.directory, capture_output=True, text=True
    )
    assert done.stdout.split() == [f"plain,{each}" for each in completed], done.stderr


@pytest.mark.parametrize("words", ["servers", "health", "tools list", "audit"])
def test_a_table_fits_a_terminal_and_cuts_nothing(stack: Stack, words: str) -> None:
    def shown() -> Terminal | None:
        terminal = Terminal(TARSY_TASKS, *words.split(), environment=stack.environment, cwd=stack.directory)
        terminal.wait()
        is_checked = "\x1b[32mhealthy" in terminal.text and any("reason: " in line for line in terminal.lines)
        return terminal if is_checked or words not in ("servers", "health") else None

    terminal = wait_until(shown, "the servers are checked, and a reason is shown")
    table = [line for line in terminal.lines if not line.startswith(("broken: ", "this list"))]
    assert max(map(len, table)) <= 80
    assert not any("…" in line for line in table)


def test_a_followed_audit_is_a_table(stack: Stack) -> None:
    follow = Terminal(TARSY_TASKS, "audit", "--follow", environment=stack.environment, cwd=stack.directory)
    with closing(follow):
        wait_until(lambda: "clock.now" in follow.text, "the call that `up` made")
        stack.type("tarsy-tasks call desk.echo text=hello")
        wait_until(lambda: "hello" in follow.text, "a later one, with its arguments")
    header = next(line for line in follow.lines if line.startswith("time"))
    rows = [line for line in follow.lines if re.match(r"\d\d:\d\d:\d\d  ", line)]
    at = header.index("outcome")
    assert {row[at:].split()[0] for row in rows} == {"ok", "tool_error"}, rows
    assert len(rows) >= 3


def test_a_program_that_is_downloaded_first_is_still_starting(tmp_path: Path) -> None:
    (tmp_path / "clock.py").write_text(CLOCK)
    (tmp_path / "uvx").write_text(UVX.format(python=sys.executable, clock=tmp_path / "clock.py"))
    (tmp_path / "uvx").chmod(0o755)
    servers = {
        name: {"command": "uvx", "args": [name], "timeouts": {"connect_s": 5 if name == "small" else 1}}
        for name in ("small", "endless")
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment(PATH=path, XDG_STATE_HOME=str(tmp_path), TARSY_RUN_DIR=str(tmp_path / "run"))
    with ServiceProcess([TARSY_TASKS, "up", "--flower-port", "0"], tmp_path / "up.log", environment, tmp_path) as up:
        up.wait_for_log("Ctrl-C stops everything")
    lines = [line for line in up.log.splitlines() if line.startswith(("small ", "endless "))]
    states = {name: [line.split()[1] for line in lines if line.startswith(name)] for name in servers}
    assert {name: (*dict.fromkeys(found),) for name, found in states.items()} == {
        "small": ("still", "works"),
        "endless": ("still", "fails"),
    }
    assert any("still starting" in line and "The next attempt may take" in line for line in lines), lines


def test_it_ends_when_a_process_ends(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": DEMO_SERVER}}))
    environment = clean_environment(XDG_STATE_HOME=str(tmp_path / "state"), TARSY_RUN_DIR=str(tmp_path / "run"))
    command = [TARSY_TASKS, "up", "--flower-port", "0", "--verbose"]
    up = ServiceProcess(command, tmp_path / "up.log", environment, tmp_path)
    try:
        up.wait_for_log(" ready.")
        beat = wait_until(
            lambda: next((child for child in up.children() if "beat" in read_command(child)), None), "beat"
        )
        beat.kill()
        assert up.process.wait(30) == 1
        assert ": 1 server enabled;" in up.log
        assert "beat ended" in up.log
    finally:
        up.stop()
    assert not psutil.pid_exists(beat.pid)
    assert {"worker", "beat"} <= {line.split()[0] for line in up.log.splitlines() if line}


def _status(url: str | Request) -> int | None:
    try:
        with build_opener(HTTPCookieProcessor()).open(url, timeout=30) as response:
            return response.status
    except HTTPError as error:
        return error.code
