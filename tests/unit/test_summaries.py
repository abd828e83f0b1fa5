"""Summaries of long results, with executors that answer at once: when there is one, and what the agent gets without."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarsy_tasks import ErrorCode, LargeResult, SummarizedCall, Summarizer, ToolCall, ToolExecutor, ToolResult
from tarsy_tasks.agent.prompt_budget import estimate_tokens
from tarsy_tasks.testing import AsyncStubToolExecutor, StubToolExecutor

LINE = "0123456789 a line of a log\n"
LONG = LINE * 2000
SHORT_S = 0.05
ANSWERS: dict[str, Any] = {"logs.read": LONG, "logs.few": "short", "logs.fail": ErrorCode.TOOL_ERROR}
run_name = ContextVar("run_name", default="none")


def brief(text: str, call: SummarizedCall, context: Any) -> str:
    return f"{len(text)} characters of {call.server}.{call.tool} {call.arguments}, at most {call.max_tokens}: {context}"


async def brief_later(text: str, call: SummarizedCall, context: Any) -> str:
    await asyncio.sleep(0)
    return brief(text, call, context)


class Lazy:
    """Its call is a coroutine, though it is not a coroutine function."""

    def __call__(self, text: str, call: SummarizedCall, context: Any) -> Any:
        return brief_later(text, call, context)


def run_sync(summarizer: Any, name: str = "logs.read", context: object = None) -> ToolResult:
    with StubToolExecutor(ANSWERS, summarizer=summarizer) as tools:
        return tools.execute(name, {"pod": "web"}, context=context)


def run_async(summarizer: Any, name: str = "logs.read", context: object = None) -> ToolResult:
    async def agent() -> ToolResult:
        async with AsyncStubToolExecutor(ANSWERS, summarizer=summarizer) as tools:
            return await tools.execute(name, {"pod": "web"}, context=context)

    return asyncio.run(agent())


both = pytest.mark.parametrize("run", [run_sync, run_async])


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """For functions that hang until the test has ended."""
    event = threading.Event()
    yield event
    event.set()


def assert_unsummarized(result: ToolResult, why: str) -> None:
    assert (result.content, result.summary, result.is_error) == (LONG, None, False)
    [note] = result.notes
    assert note.startswith("SUMMARY_FAILED: ")
    assert why in note
    assert "the result is shown as it is" in note


@both
@pytest.mark.parametrize("function", [brief, brief_later, Lazy(), partial(brief)])
def test_a_long_result_is_summarized(run: Callable[..., ToolResult], function: Any) -> None:
    result = run(function, context=["why is it slow?"])
    first, _, summary = result.content.partition("\n")
    tokens = estimate_tokens(LONG)
    assert first == f"[This result has about {tokens} tokens. Below is a summary of it.]"
    assert summary == f"{len(LONG)} characters of logs.read {{'pod': 'web'}}, at most 1000: ['why is it slow?']"
    assert result.summary is not None
    assert (result.summary.tokens, result.summary.summary_tokens) == (tokens, estimate_tokens(summary))
    assert (result.summary.input_chars, result.summary.content_chars) == (len(LONG), len(LONG))
    assert result.summary.original == LONG
    assert LINE not in repr(result.summary)
    assert result.notes == ()
    assert ToolResult.model_validate_json(result.model_dump_json()) == result


@both
@pytest.mark.parametrize("name", ["logs.few", "logs.fail", "logs.nothing"])
def test_short_results_and_errors_are_not(run: Callable[..., ToolResult], name: str) -> None:
    asked: list[str] = []
    result = run(lambda text, *_: asked.append(text), name)
    assert asked == []
    assert (result.summary, result.notes) == (None, ())


def test_without_a_summarizer_nothing_is() -> None:
    with StubToolExecutor(ANSWERS) as tools:
        result = tools.execute("logs.read", context="is not used")
    assert (result.content, result.summary) == (LONG, None)


def test_settings_are_those_of_the_server() -> None:
    answers = {"logs.read": LONG, "wiki.page": LONG, "desk.list": "x" * 1000}
    of_servers = {
        "logs": {"enabled": False},
        "wiki": {"summary_max_token_limit": 77},
        "desk": {"size_threshold_tokens": 200},
    }
    with StubToolExecutor(answers, summarizer=Summarizer(brief, of_servers)) as tools:
        found = tools.execute_many([(name, {}) for name in answers])
    assert [result.summary is not None for result in found] == [False, True, True]
    assert "at most 77" in found[1].content


def test_tokens_are_counted_by_the_tokenizer_of_the_agent() -> None:
    def count(text: str) -> int:
        return len(text) // 1000

    with StubToolExecutor(ANSWERS, summarizer=Summarizer(brief, count_tokens=count)) as tools:
        assert tools.execute("logs.read").summary is None
    low = Summarizer(brief, {"logs": {"size_threshold_tokens": 100}}, count_tokens=lambda text: len(text) // 300)
    with StubToolExecutor({"logs.read": LONG}, summarizer=low) as tools:
        summary = tools.execute("logs.read").summary
    assert summary is not None
    assert summary.tokens == len(LONG) // 300


@pytest.mark.parametrize("handle", ["", "expired"])
def test_what_cannot_be_read_whole_is_summarized_as_it_is(handle: str) -> None:
    cut = ToolResult(call_id="", name="", content=LONG, large=LargeResult(handle=handle, content_chars=10 * len(LONG)))
    with StubToolExecutor({"logs.read": cut}, summarizer=brief) as tools:
        result = tools.execute("logs.read")
    assert result.summary is not None
    assert (result.summary.input_chars, result.summary.original) == (len(LONG), LONG)
    assert ("tarsy.read_result" in result.content) is bool(handle)


@both
@pytest.mark.parametrize(
    ("returned", "why"),
    [
        (None, "returned a NoneType, not a text"),
        (b"bytes", "returned a bytes, not a text"),
        (" \n", "returned an empty text"),
        (LONG, "returned a text that is not shorter"),
        (LONG * 9, "returned a text that is not shorter"),
    ],
)
def test_what_is_no_summary_leaves_the_result(run: Callable[..., ToolResult], returned: Any, why: str) -> None:
    summarizer = Summarizer(lambda *_: returned, {"logs": {"summary_max_token_limit": 10**9}})
    assert_unsummarized(run(summarizer), why)


@both
@pytest.mark.parametrize("error", [ValueError, TimeoutError, asyncio.CancelledError, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_summarizer_that_raises_leaves_the_result(
    run: Callable[..., ToolResult], error: type[BaseException], is_async: bool
) -> None:
    def fail(*_: Any) -> str:
        raise error("with a secret")

    async def fail_later(*_: Any) -> str:
        raise error("with a secret")

    result = run(fail_later if is_async else fail)
    assert_unsummarized(result, "the summarizer raised ")
    assert "secret" not in result.notes[0]


@both
def test_a_summarizer_that_blocks_leaves_the_result(run: Callable[..., ToolResult], released: threading.Event) -> None:
    summarizer = Summarizer(lambda *_: released.wait(), timeout_s=SHORT_S)
    assert_unsummarized(run(summarizer), f"did not return within {SHORT_S:g} s")


@both
def test_a_coroutine_that_hangs_is_cancelled(run: Callable[..., ToolResult]) -> None:
    cancelled = threading.Event()

    async def hang(*_: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    assert_unsummarized(run(Summarizer(hang, timeout_s=SHORT_S)), "did not return within")
    assert cancelled.wait(20)


def test_a_coroutine_that_blocks_its_loop_leaves_the_result(released: threading.Event) -> None:
    """The loop of synchronous agents' coroutine functions is none on which calls run."""

    async def block(*_: Any) -> str:
        released.wait()
        return ""

    assert_unsummarized(run_sync(Summarizer(block, timeout_s=SHORT_S)), "did not return within")
    assert run_sync(brief).summary is not None, "other executors go on"
    released.set()


def test_functions_that_hang_do_not_pile_up(released: threading.Event) -> None:
    began: list[str] = []

    def hang(text: str, *_: Any) -> str:
        began.append(text)
        released.wait()
        return ""

    with StubToolExecutor(ANSWERS, summarizer=Summarizer(hang, timeout_s=SHORT_S)) as tools:
        for _ in range(3):
            results = tools.execute_many([("logs.read", {})] * 20)
            assert all(result.content == LONG for result in results)
        assert_unsummarized(tools.execute("logs.read"), "16 earlier calls have not returned yet")
    assert 16 <= len(began) < 61


def test_coroutine_functions_run_on_the_loop_of_the_agent() -> None:
    async def which(_: str, __: SummarizedCall, context: Any) -> str:
        return f"{asyncio.get_running_loop() is context} {run_name.get()}"

    async def agent() -> list[str]:
        run_name.set("r7")
        async with AsyncStubToolExecutor(ANSWERS, summarizer=which) as tools:
            here = asyncio.get_running_loop()
            pending = await tools.submit("logs.read", context=here)
            results = [await pending.result(), await tools.execute("logs.read", context=here)]
            results += await tools.execute_many([("logs.read", {}), ("logs.few", {})], context=here)
        return [result.content.partition("\n")[2] or result.content for result in results]

    assert asyncio.run(agent()) == ["True r7", "True r7", "True r7", "short"]


def test_a_summarizer_sees_the_context_variables_of_its_call() -> None:
    run_name.set("r8")
    try:
        assert run_sync(lambda *_: run_name.get()).content.endswith("\nr8")
    finally:
        run_name.set("none")


def test_a_pending_call_is_done_when_it_is_summarized(released: threading.Event) -> None:
    def wait(*_: Any) -> str:
        released.wait()
        return "brief"

    with StubToolExecutor(ANSWERS, summarizer=wait) as tools:
        pending = tools.submit(ToolCall(name="logs.read", id="c1"))
        assert not pending.done()
        released.set()
        result = pending.result()
        assert (result.call_id, result.content.partition("\n")[2]) == ("c1", "brief")
        assert pending.result() is result


def test_a_summary_does_not_need_a_loop_that_was_closed() -> None:
    entered = threading.Event()
    release = threading.Event()

    def begin(*_: Any) -> Any:
        entered.set()
        release.wait(20)
        return brief_later(*_)

    async def submit() -> Any:
        tools = AsyncStubToolExecutor(ANSWERS, summarizer=begin)
        pending = await tools.submit("logs.read")
        await asyncio.to_thread(entered.wait, 20)
        return pending

    pending = asyncio.run(submit())
    release.set()
    assert asyncio.run(pending.result()).summary is not None


@given(st.text(st.sampled_from("ab\n😀é "), max_size=4000), st.integers(50, 400), st.integers(1, 5))
@settings(max_examples=60, deadline=None)
def test_a_summary_keeps_to_its_tokens(summary: str, limit: int, chars_per_token: int) -> None:
    def count(text: str) -> int:
        return -(-len(text) // chars_per_token)

    made = Summarizer(lambda *_: summary, {"logs": {"summary_max_token_limit": limit}}, count_tokens=count)
    result = run_sync(made)
    if result.summary is None:
        assert not summary.strip()
        return
    shown = result.content.partition("\n")[2]
    assert count(shown) == result.summary.summary_tokens <= limit
    whole, mark, _ = shown.rpartition("\n[The summary is cut here.]")
    assert summary.startswith(whole) if mark else shown == summary


@pytest.mark.parametrize("line", ["a line\n", "😀é", "x" * 1000 + "\n"])
def test_at_most_400_kb_are_summarized(line: str) -> None:
    seen: list[str] = []

    def keep(text: str, *_: Any) -> str:
        seen.append(text)
        return "brief"

    text = line * (1_500_000 // len(line))
    with StubToolExecutor({"logs.read": text}, summarizer=keep) as tools:
        result = tools.execute("logs.read")
    shown, _, left = seen[0].rpartition("\n[")
    assert text.startswith(shown)
    assert 0.75 * 400_000 < len(shown.encode()) <= 400_000
    assert left == f"{len(text) - len(shown)} characters are left out here]"
    assert "\n" not in line or text[len(shown)] == "\n", "between lines"
    assert result.summary is not None
    assert (result.summary.input_chars, result.summary.content_chars) == (len(shown), len(text))
    assert result.summary.tokens == pytest.approx(estimate_tokens(text), rel=0.01)
    assert f"Below is a summary of its first {len(shown)} characters.]" in result.content


def test_wrong_settings_are_refused_at_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ({"size_threshold_tokens": 1}, {"enabled": "true"}, {"limit": 5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Summarizer(brief, {"logs": wrong})
    with pytest.raises(ValueError, match="timeout_s"):
        Summarizer(brief, timeout_s=0)


def test_an_executor_reads_the_configuration_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mcp.json"
    entry = {"command": "x", "summarization": {"size_threshold_tokens": 300, "summary_max_token_limit": 60}}
    path.write_text(json.dumps({"mcpServers": {"logs": entry, "wiki": {"command": "y"}}}))
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(path))
    given = {"logs": {"size_threshold_tokens": 999}, "wiki": {"size_threshold_tokens": 400}}
    summaries = ToolExecutor(["logs", "wiki"], summarizer=Summarizer(brief, given))._dispatcher.summaries
    assert summaries is not None
    path.unlink()
    assert summaries._settings.of("logs").size_threshold_tokens == 300, "the configuration precedes"
    assert summaries._settings.of("wiki").size_threshold_tokens == 400
