"""The command line as real processes: exit codes, plain and JSON output."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import TARSY_TASKS, clean_environment, run_command
from tests.cli.terminal import Terminal
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, free_port, wait_until
from tests.servers import player_stdio

PLAYED = '{"steps": [{"progress": {"progress": 3, "total": 4, "message": "nearly there"}}, {"pause_s": 0.5}]}'


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    player = {"command": sys.executable, "args": ["-S", "-E", player_stdio.__file__]}
    return start_worker({"desk": DEMO_SERVER, "off": {**DEMO_SERVER, "enabled": False}, "player": player})


def test_call_prints_what_a_model_reads(worker: Worker) -> None:
    done = run_command("call", "desk.quote", "item=lamp", "count=2", environment=worker.environment)
    assert (done.returncode, json.loads(done.stdout)["total"]) == (0, 9.0)


def test_a_call_on_a_terminal_has_a_bar(worker: Worker) -> None:
    terminal = Terminal(TARSY_TASKS, "call", "player.play", PLAYED, environment=worker.environment)
    assert terminal.wait() == 0
    assert "3/4 nearly there" in terminal.text
    shown = run_command("call", "--json", "player.play", PLAYED, environment=worker.environment)
    assert json.loads(shown.stdout)["content"] == "{}", "nothing was asked of the server"


def test_call_takes_a_json_object_and_prints_json(worker: Worker) -> None:
    done = run_command("call", "--json", "desk.echo", '{"text": "hello"}', environment=worker.environment)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert (result["content"], result["outcome"], result["is_error"]) == ("hello", "ok", False)


@pytest.mark.parametrize(
    ("words", "code", "expected_text"),
    [
        (["call", "desk.order", "item=unicorn", "count=1"], 1, "sold out"),
        (["call", "desk.order", "item=lamp"], 1, "count"),
        (["call", "nowhere.echo"], 1, "desk"),
        (["call", "desk.wait", "seconds=20", "--timeout", "8"], 4, "may have run"),
        (["tools", "list", "nowhere"], 2, "desk"),
        (["tools", "search", "zebra"], 1, "no tools"),
        (["tools", "search", "zebra", "--limit", "0"], 2, "--limit"),
        (["call"], 2, "SERVER.TOOL"),
        (["nonsense"], 2, "nonsense"),
        (["tool", "list"], 2, "Did you mean 'tools'?"),
        (["tools", "lst"], 2, "Did you mean 'list'?"),
    ],
)
def test_exit_codes_and_texts_of_failures(worker: Worker, words: list[str], code: int, expected_text: str) -> None:
    done = run_command(*words, environment=worker.environment)
    assert done.returncode == code, done
    assert expected_text in done.stdout + done.stderr


def test_tools_list_shows_every_tool(worker: Worker) -> None:
    done = run_command("tools", "list", environment=worker.environment)
    assert done.returncode == 0
    assert {line.split("\t")[0] for line in done.stdout.splitlines()} >= {"desk.echo", "desk.wait"}
    as_json = json.loads(run_command("tools", "list", "desk", "--json", environment=worker.environment).stdout)
    assert as_json["failed_servers"] == {}
    assert {tool["server"] for tool in as_json["tools"]} == {"desk"}


def test_tools_search_shows_the_best_first(worker: Worker) -> None:
    done = run_command("tools", "search", "place", "an", "order", "--limit", "2", environment=worker.environment)
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[0].split("\t")[0] == "desk.order"
    words = ("tools", "search", "order", "--server", "desk", "--live", "--json")
    as_json = json.loads(run_command(*words, environment=worker.environment).stdout)
    assert as_json["tools"][0]["name"] == "desk.order"


def test_servers_shows_what_is_configured(worker: Worker) -> None:
    done = run_command("servers", "--json", environment=worker.environment)
    assert done.returncode == 0
    found = {server["server"]: server for server in json.loads(done.stdout)}
    assert found["off"]["health"] == "disabled"
    assert found["desk"]["where"] == sys.executable
    assert "desk" in run_command("servers", environment=worker.environment).stdout


def test_the_same_commands_are_mounted_in_celery(worker: Worker) -> None:
    command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "mcp", "call", "desk.echo", "text=hello"]
    done = subprocess.run(command, capture_output=True, text=True, env=worker.environment, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "hello")


def test_a_former_name_of_a_command_works_and_is_not_listed(worker: Worker) -> None:
    found = [
        json.loads(run_command(name, "list", "--json", environment=worker.environment).stdout)
        for name in ("dead-letters", "poison")
    ]
    assert found == [{"messages": [], "total": 0}] * 2
    listed = run_command("--help", environment=worker.environment).stdout
    assert ("dead-letters" in listed, "poison" in listed) == (True, False)


def test_a_group_without_a_command_shows_its_help(worker: Worker) -> None:
    for group in ("tools", "config", "dead-letters"):
        done = run_command(group, environment=worker.environment)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            2,
            f"Usage: tarsy-tasks {group} [OPTIONS] COMMAND [ARGS]...",
        )
        assert "Error" not in done.stderr


def test_an_empty_output_says_so(worker: Worker) -> None:
    for words, text in ((("dead-letters", "list"), "no dead letters"), (("audit", "--agent", "x"), "no call")):
        done = run_command(*words, environment=worker.environment)
        assert (done.returncode, done.stdout) == (0, "")
        assert text in done.stderr


def test_config_check_and_schema(worker: Worker, tmp_path: Path) -> None:
    done = run_command("config", "check", environment=worker.environment)
    assert done.returncode == 0
    assert "3 servers, 2 enabled" in done.stdout
    schema = json.loads(run_command("config", "schema", environment=worker.environment).stdout)
    assert "mcpServers" in schema["properties"]
    broken = tmp_path / "broken.json"
    broken.write_text('{"mcpServers": {"desk": {"comand": "x"}}}')
    done = run_command("config", "check", str(broken), environment=worker.environment)
    assert done.returncode == 2
    assert "broken.json:1" in done.stderr
    assert "command" in done.stderr


def test_without_a_configuration_the_remedy_is_named(tmp_path: Path) -> None:
    done = run_command("servers", environment=clean_environment(), cwd=tmp_path)
    assert done.returncode == 2
    assert "mcp.json" in done.stderr
    assert "TARSY_MCP_CONFIG" in done.stderr


def test_without_redis_the_exit_code_is_unavailable(worker: Worker) -> None:
    environment = {**worker.environment, "TARSY_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0"}
    done = run_command("call", "desk.echo", "text=hello", "--timeout", "1", environment=environment)
    assert done.returncode == 3
    assert "TARSY_REDIS_URL" in done.stderr


def test_the_demo_runs_and_every_call_ends_as_expected(tmp_path: Path) -> None:
    environment = clean_environment(XDG_STATE_HOME=str(tmp_path / "state"), TARSY_RUN_DIR=str(tmp_path / "run"))
    done = run_command("demo", environment=environment, cwd=tmp_path)
    assert done.returncode == 0, done
    assert "40 calls" in done.stdout
    assert "12 calls, and while they ran `desk` was killed (kill -9) and `shop` restarted: 12 ok" in done.stdout
    for words in (
        "10 ok",
        "2 tool_error",
        "2 rejected",
        "desk\thealthy\t5",
        "shop\thealthy\t5",
        "Dashboard: http://127.0.0.1:",
    ):
        assert words in done.stdout
    assert done.stderr == ""
    *_, make, write, up, _, tools, call = done.stdout.splitlines()
    assert (make, tools.split()[1:]) == ("  mkdir my-tools && cd my-tools", ["tools", "list"])
    as_typed = {"env": environment, "shell": True, "capture_output": True, "text": True, "timeout": 60}
    subprocess.run(f"{make}\n{write}", check=True, cwd=tmp_path, **as_typed)
    config = json.loads((tmp_path / "my-tools" / "mcp.json").read_text())["mcpServers"]
    with ServiceProcess(
        shlex.split(f"{up} --flower-port 0"), tmp_path / "up.log", environment, tmp_path / "my-tools"
    ) as own:
        own.wait_for_log("Ctrl-C")
        assert f"{next(iter(config))}  works  5 tools" in own.log
        assert json.loads(subprocess.run(call, cwd=tmp_path / "my-tools", **as_typed).stdout)["total"] == 9.0


def test_what_takes_more_than_a_second_shows_a_spinner(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    code = "import sys\nfrom tarsy_tasks.cli.output import busy\nwith busy('counting'): open(sys.argv[1]).read()"
    terminal = Terminal(sys.executable, "-c", code, str(tmp_path / "end"), environment=os.environ)
    wait_until(lambda: "counting" in terminal.text, "it is said what takes long")
    (tmp_path / "end").write_text("")
    assert terminal.wait() == 0
    assert terminal.text.endswith("\x1b[2K"), "nothing is left of it"
