"""The tutorial, and the pages whose code needs servers of its own: all of it runs, in processes of a reader's."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.testing import ScriptedServer
from tests.adapters import test_openai, test_pages
from tests.adapters.provider import provider_on_loopback
from tests.cli.commands import run_command, run_forked
from tests.conftest import StartWorker
from tests.docs.blocks import DOCS, PAGES, Block, name_of, read_blocks, read_commands
from tests.processes import DEMO_SERVER
from tests.warm_start import warm_command

TUTORIAL = DOCS / "tutorial.md"
ELSEWHERE = {DOCS / "testing.md": "tests/tour/test_testing_page.py", TUTORIAL: "below"}
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "everything": {"echo": "hello", "get-sum": "5"},
    "github": {"list_issues": []},
    "k8s": {"pods_list": "web-1"},
    "memory": {"search_nodes": "nothing"},
    "shop": {"order": "ordered"},
}
SUPPOSED = {
    "docs/interceptors.md": "def is_night(): return True",
    "docs/masking.md": "report = 'password: hunter2'",
}
"""What the code of a page supposes to be there."""
THEIR_OWN = [
    page
    for page in PAGES
    if page not in (*test_pages.PAGES, *ELSEWHERE) and any(block.language == "python" for block in read_blocks(page))
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reader's, with the files of the tutorial."""
    directory = tmp_path_factory.mktemp("reader")
    for block in read_blocks(TUTORIAL):
        if block.title:
            (directory / block.title).write_text(block.code)
    return directory


@pytest.fixture(scope="module")
def environment(directory: Path, start_worker: StartWorker) -> Iterator[dict[str, str]]:
    """Of a reader whose stack has all servers that the pages name."""
    with ExitStack() as stack:
        servers: dict[str, Any] = {}
        for name, answers in ANSWERS.items():
            server = stack.enter_context(ScriptedServer())
            for tool, answer in answers.items():
                server.answer(tool, answer)
            servers[name] = {"url": server.url}
        [written] = json.loads((directory / "mcp.json").read_text())["mcpServers"].items()
        assert written == ("stock", {"command": "python", "args": ["server.py"]})
        servers["desk"] = DEMO_SERVER
        servers["stock"] = {**warm_command("server.py"), "cwd": str(directory)}
        yield start_worker(servers).environment


@pytest.mark.parametrize("page", THEIR_OWN, ids=name_of)
def test_the_code_of_a_page_runs(page: Path, directory: Path, environment: dict[str, str]) -> None:
    script = directory / "page.py"
    lines = [SUPPOSED.get(name_of(page), "")]
    for block in read_blocks(page):
        if block.language == "python" and block.is_run:
            lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
    script.write_text("\n".join(lines).replace("redis://127.0.0.1:6379/0", environment["TARSY_REDIS_URL"]))
    done = run_forked([str(script)], environment, directory)
    assert done.returncode == 0, done.stderr


def test_the_tutorial_does_what_it_says(directory: Path, environment: dict[str, str]) -> None:
    blocks = read_blocks(TUTORIAL)
    with provider_on_loopback() as provider:
        provider.script = [
            test_openai.chat(("stock__count", '{"item": "desk"}'), ("stock__count", '{"item": "lamp"}')),
            test_openai.chat(text="There are some."),
        ]
        environment = {**environment, "OPENAI_BASE_URL": provider.url, "OPENAI_API_KEY": "none"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a reader's environment has none of them
        for number, block in enumerate(blocks):
            if block.language == "sh":
                printed = "".join(run(words, block, directory, environment) for words in read_commands(block))
                if number + 1 < len(blocks) and blocks[number + 1].language == "text":
                    assert fits(blocks[number + 1].code, printed), printed
        # As the server counts since it was started again.
        assert [message["content"] for message in provider.requests[1]["messages"][-2:]] == ["12", "3"]


def run(words: list[str], block: Block, directory: Path, environment: dict[str, str]) -> str:
    """What a command of the tutorial prints. The environment and the stack are already there."""
    match words:
        case ["tarsy-tasks", "up"] | ["python3", *_] | ["." | "pip", *_]:
            return ""
        case ["tarsy-tasks", *rest]:
            done = run_command(*rest, environment=environment, cwd=directory)
        case ["python", *rest]:
            done = run_forked(rest, environment, directory)
        case _:
            pytest.fail(f"no test runs {words}")
    assert done.returncode == (4 if block.note == "exit code 4" else 0), done
    return done.stdout


def fits(expected: str, printed: str) -> bool:
    """Whether this is what the page shows; `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
