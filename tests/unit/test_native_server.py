"""The program that serves the functions of a module: what it takes, and how many threads it uses."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import native_tool
from tarsy_tasks.native.module import load_tools
from tarsy_tasks.native.threads import BoundedThreads, ThreadsHang
from tarsy_tasks.testing import StubToolExecutor
from tests.servers import native_tools


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    known = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.startswith("tools_that_"):
            del sys.modules[name]


MARKED = "from tarsy_tasks import native_tool\n@native_tool\n"


@pytest.mark.parametrize(
    ("name", "source", "why"),
    [
        ("tools_that_raise", "raise OSError('no disk')", "tools_that_raise.py, line 1)"),
        ("tools_that_exit", "raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("tools_that_are_wrong", "def f(:", "cannot be imported: SyntaxError"),
        ("tools_that_are_missing", "import no_such_module_at_all", "No module named 'no_such_module_at_all'"),
        ("tools_that_are_unmarked", "def f(): ...", "has no tools: mark its functions"),
        ("tools_that_take_all", f"{MARKED}def f(*a): ...", "each needs a name"),
        ("tools_that_clash", f"{MARKED}def f(): ...\ng = f\n@native_tool(name='f')\ndef h(): ...", "two tools"),
    ],
)
def test_a_module_without_valid_tools_is_refused(folder: Path, name: str, source: str, why: str) -> None:
    (folder / f"{name}.py").write_text(source)
    with pytest.raises(ValueError, match=r"tool|import") as raised:
        load_tools("ops", name)
    assert why in str(raised.value)


def test_marked_functions_are_the_tools_of_a_module() -> None:
    tools = load_tools("ops", native_tools.__name__)
    assert "in-order" in tools
    assert "unmarked" not in tools
    assert tools["in-order"].definition.description == "Give it back."


def test_an_agent_takes_what_a_mark_says() -> None:
    @native_tool(name="add-up", description="Adds.", idempotent=True)
    def add(first: int, second: int = 2) -> int:
        return first + second

    with StubToolExecutor({}) as tools:
        tools.native(add)
        [found] = tools.list_tools()
        assert (found.name, found.description, found.annotations) == (
            "native.add-up",
            "Adds.",
            {"idempotentHint": True},
        )
        assert tools.execute("native.add-up", {"first": 1}).structured == 3


def test_threads_that_nobody_waits_for_count_until_they_return() -> None:
    released = threading.Event()

    async def run() -> None:
        threads = BoundedThreads(most=2)
        hanging = [asyncio.create_task(threads.run(released.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in hanging:
            task.cancel()
        await asyncio.wait(hanging)
        with pytest.raises(ThreadsHang):
            await threads.run(int)
        released.set()
        returned: list[int] = []
        while not returned:
            with suppress(ThreadsHang):
                returned.append(await threads.run(int))
            await asyncio.sleep(0)

    asyncio.run(run())


def test_functions_wait_for_a_thread() -> None:
    running: list[int] = []
    most: list[int] = []

    def work() -> None:
        running.append(1)
        most.append(len(running))
        running.pop()

    async def run() -> list[Any]:
        threads = BoundedThreads(most=2)
        return await asyncio.gather(*(threads.run(work) for _ in range(50)))

    assert asyncio.run(run()) == [None] * 50
    assert max(most) <= 2
