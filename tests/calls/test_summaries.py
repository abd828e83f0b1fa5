"""Summaries of the results of real tools: read whole by their handle, with the settings of the configuration."""

import asyncio
import threading
from typing import Any

import pytest

from tarsy_tasks import AsyncToolExecutor, Outcome, SummarizedCall, Summarizer, ToolCall, ToolExecutor
from tests.conftest import StartWorker
from tests.plants import know
from tests.processes import Worker
from tests.servers import lengthy
from tests.warm_start import warm_command

LINES = 5000
know("of long answers", lengthy.SECRET)


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker) -> Worker:
    server = warm_command(lengthy.__file__)
    low = {"size_threshold_tokens": 100, "summary_max_token_limit": 50}
    return start_worker(
        {
            "usual": server,
            "low": {**server, "summarization": low},
            "never": {**server, "summarization": {"enabled": False}},
        }
    )


def last_line(text: str, call: SummarizedCall, context: Any) -> str:
    assert lengthy.SECRET not in text
    return f"{context}: {call.tool} has {text.count(chr(10)) + 1} lines, the last is {text.rpartition(chr(10))[2]}"


def test_a_result_that_was_cut_is_summarized_whole(worker: Worker) -> None:
    with ToolExecutor(timeout_s=30, agent_id="reader", summarizer=last_line) as tools:
        result = tools.execute("usual.report", {"lines": LINES}, context="asked")
        assert result.outcome is Outcome.OK
        assert result.large is not None
        assert result.summary is not None
        first, _, summary = result.content.partition("\n")
        of_last = f"{LINES - 1:07} the quick brown fox jumps over the lazy dog"
        assert summary == f"asked: report has {LINES} lines, the last is {of_last}"
        assert result.large.handle in first, "the model can read on"
        assert result.summary.content_chars == result.large.content_chars == result.summary.input_chars
        assert "are left out here]" in result.summary.original
        assert len(tools.read_result(result.large.handle, 0, 10).text) == 10
        read = tools.execute("tarsy.read_result", {"handle": result.large.handle, "limit": 60_000})
        assert read.summary is None, "what was asked for is not summarized"


def test_settings_come_from_the_configuration(worker: Worker) -> None:
    calls = [(f"{server}.report", {"lines": 20}) for server in ("usual", "low", "never")]
    with ToolExecutor(timeout_s=30, summarizer=lambda _, call, __: f"at most {call.max_tokens}") as tools:
        results = tools.execute_many([*calls, ("never.report", {"lines": LINES}), ("low.fail", {"words": 500})])
    assert [result.summary is not None for result in results] == [False, True, False, False, False]
    assert results[1].content.endswith("\nat most 50")


def test_asyncio_agents_get_summaries_too(worker: Worker) -> None:
    async def agent() -> list[str]:
        async def ask(text: str, call: SummarizedCall, context: Any) -> str:
            await asyncio.sleep(0)
            return last_line(text, call, context)

        async with AsyncToolExecutor(timeout_s=30, summarizer=ask) as tools:
            pending = await tools.submit("low.report", {"lines": 20}, context="submitted")
            results = [
                await pending.result(),
                *await tools.execute_many([ToolCall(name="low.report", arguments={"lines": 30})]),
            ]
        return [result.content.partition("\n")[2][:30] for result in results]

    assert asyncio.run(agent()) == ["submitted: report has 20 lines", "None: report has 30 lines, the"]


def test_a_call_cancelled_while_it_is_summarized_has_its_result(worker: Worker) -> None:
    began, released = threading.Event(), threading.Event()

    def wait(*_: Any) -> str:
        began.set()
        released.wait()
        return "late"

    with ToolExecutor(timeout_s=30, summarizer=wait) as tools:
        pending = tools.submit("low.report", {"lines": 20})
        assert began.wait(30)
        assert not pending.done()
        pending.cancel()
        result = pending.result()
        released.set()
    assert result.outcome is Outcome.OK
    assert "SUMMARY_FAILED: the call was cancelled meanwhile" in result.notes[0]
    assert result.content.startswith("0000000 the quick")


def test_an_agent_that_no_longer_waits_cancels_its_summary(worker: Worker) -> None:
    began, cancelled = threading.Event(), threading.Event()

    async def hang(*_: Any) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async def agent() -> None:
        async with AsyncToolExecutor(timeout_s=30, summarizer=hang) as tools:
            waiting = asyncio.create_task(tools.execute("low.report", {"lines": 20}))
            await asyncio.to_thread(began.wait, 30)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(cancelled.wait, 30)

    asyncio.run(agent())
    assert cancelled.is_set()


def test_a_summary_takes_time_of_its_own(worker: Worker) -> None:
    """A call that is answered just before its deadline is summarized all the same."""
    released = threading.Event()
    deadline = threading.Timer(5.5, released.set)

    def wait(*_: Any) -> str:
        released.wait()
        return "late"

    with ToolExecutor(timeout_s=5, summarizer=Summarizer(wait)) as tools:
        pending = tools.submit("low.report", {"lines": 20})
        deadline.start()
        assert pending.result().content.endswith("\nlate")
    deadline.join()
