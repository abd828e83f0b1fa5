"""What servers ask: where it is read, and how much of it there may be."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import ElicitRequestFormParams, ElicitRequestURLParams

from tarsy_tasks import ErrorCode
from tarsy_tasks.errors import CallError
from tarsy_tasks.worker.calls.questions import Questions, read_questions
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import build_masker


class NotingMasker:
    """Masks, and notes in which threads."""

    def __init__(self) -> None:
        self._masker = build_masker()
        self.threads: set[threading.Thread] = set()

    def __getattr__(self, name: str) -> Any:
        self.threads.add(threading.current_thread())
        return getattr(self._masker, name)


def form(message: str = "Which?", fields: int = 1, title: str = "") -> ElicitRequestFormParams:
    properties = {f"field{number}": {"type": "string", "title": title} for number in range(fields)}
    return ElicitRequestFormParams(message=message, requested_schema={"type": "object", "properties": properties})


def read(masker: Any, *asked: Any, key: str = "key") -> Questions:
    async def main() -> Questions:
        connection = SimpleNamespace(masker=masker, long_work=LongWork())
        call: Any = SimpleNamespace(server="shop", connection=connection, record=SimpleNamespace(title="`shop.order`"))
        return await read_questions({f"{key}{number}": each for number, each in enumerate(asked)}, call)

    return asyncio.run(main())


@pytest.mark.parametrize(
    "asked",
    [
        form("password: hunter2hunter2\n" * 150),
        form(fields=100),
        form(title="a title of " + "many letters " * 200),
        ElicitRequestURLParams(message="Sign in.", url="https://a.example.com/" + "x" * 3000, elicitation_id="e"),
    ],
    ids=["message", "fields", "title", "url"],
)
def test_large_questions_are_read_away_from_the_loop(asked: Any) -> None:
    masker = NotingMasker()
    [question] = read(masker, asked).questions
    assert threading.current_thread() not in masker.threads
    assert masker.threads
    assert "hunter2" not in question.message


def test_small_ones_need_no_thread() -> None:
    masker = NotingMasker()
    assert len(read(masker, form(), form()).questions) == 2
    assert masker.threads == {threading.current_thread()}


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ([form()] * 21, "21 questions at once; 20 are possible"),
        ([form(title="x" * 40_000)], "a form whose schema has 4"),
        ([form(title="x" * 30_000)] * 3, "questions with more than 65536 characters"),
        ([form("x" * 3900)] * 20, "questions with more than 65536 characters"),
    ],
    ids=["questions", "schema", "schemas", "messages"],
)
def test_too_much_is_refused(asked: list[Any], what: str) -> None:
    with pytest.raises(CallError, match=what) as refused:
        read(build_masker(), *asked)
    assert refused.value.code is ErrorCode.TOO_MANY_QUESTIONS


def test_the_names_that_a_server_gives_count() -> None:
    with pytest.raises(CallError, match="more than 65536 characters"):
        read(build_masker(), form(), key="k" * 70_000)
