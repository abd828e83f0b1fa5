"""Summaries of long results, by a function of the agent.

Owns when there is one, what the function is given, and what becomes of the result. If there is no summary, for whatever
reason, the agent gets the result as it is, with a note. Coroutines run on the background loop.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent.function_run import FunctionRuns
from tarsy_tasks.agent.large_results import read_part
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.agent.summarizer import SummarizedCall, Summarizer, SummarySettings
from tarsy_tasks.broker.large_results import READ_RESULT
from tarsy_tasks.errors import TarsyTasksError
from tarsy_tasks.models import ResultSummary, ToolResult

if TYPE_CHECKING:
    from tarsy_tasks.config.summarization import Summarization

__all__ = ["Summaries"]

logger = logging.getLogger(__name__)

_INPUT_BYTES = 400_000
_BYTES_A_CHAR = 4
_LINE = 0.25
"""A text is cut at the end of a line, unless that loses more than this share of it."""
_LONGEST_TOKEN_CHARS = 64
"""So that a tokenizer does not get a text of any length."""
_ROOM = 0.95
_CUT_HERE = "\n[The summary is cut here.]"
_NOTE = "SUMMARY_FAILED"


class Summaries:
    """The summaries of one executor.

    Args:
        fetch: Gives what is kept of a large result, by its handle; `ResultReader.fetch`.
    """

    def __init__(
        self,
        summarizer: Summarizer,
        settings: SummarySettings,
        fetch: Callable[[str], Awaitable[bytes]],
    ) -> None:
        self.timeout_s = summarizer.timeout_s
        self._summarizer = summarizer
        self._settings = settings
        self._fetch = fetch
        self._runs = FunctionRuns()

    def may_shorten(self, call: SubmittedCall, answer: ToolResult) -> bool:
        """Whether a result may be long enough, before its tokens are counted: they are no more than its bytes."""
        if answer.is_error or call.order is None:
            return False
        settings = self._settings.of(call.server)
        chars = max(len(answer.content), answer.large.content_chars if answer.large else 0)
        return settings.enabled and chars * _BYTES_A_CHAR > settings.size_threshold_tokens

    async def shorten(self, call: SubmittedCall, answer: ToolResult) -> ToolResult:
        """The result with a summary in place of its text; or as it is, with a note if there should be one. It takes no
        longer than `timeout_s`, and raises nothing, also when it is cancelled."""
        began = time.monotonic()
        assert call.order is not None
        try:
            async with asyncio.timeout(self.timeout_s):
                work = partial(self._summarize, await self._read_whole(answer), call, answer, began)
                done = await self._runs.run(work, call.order.loop, call.context.copy())
        except TimeoutError:
            return _note(answer, f"the summarizer did not return within {self.timeout_s:g} s")
        except asyncio.CancelledError:
            return _note(answer, "the call was cancelled meanwhile")
        except Exception as error:
            logger.warning("the result of %s.%s is not summarized: %s", call.server, call.tool, error)
            return _note(answer, f"the summarizer could not be called: {error}")
        try:
            return done.result()
        except Exception as error:
            logger.warning("the summarizer failed for a result of %s.%s", call.server, call.tool, exc_info=error)
            return _note(answer, f"the summarizer raised {type(error).__name__}")

    def _summarize(
        self, text: str | bytes, call: SubmittedCall, answer: ToolResult, began: float, finish: Callable[[Any], Any]
    ) -> ToolResult:
        """In a thread. Raises what the agent's functions raise."""
        settings, count = self._settings.of(call.server), self._summarizer.count_tokens
        shown, total = _read_input(text, answer)
        tokens = count(shown)
        if total > len(shown):
            tokens = round(tokens * total / max(1, len(shown)))
        if tokens <= settings.size_threshold_tokens:
            return answer
        assert call.order is not None
        asked = _describe(call, settings)
        summary = finish(self._summarizer.function(shown + _say_left_out(shown, total), asked, call.order.context))
        if not isinstance(summary, str):
            return _note(answer, f"the summarizer returned a {type(summary).__name__}, not a text")
        if not summary.strip():
            return _note(answer, "the summarizer returned an empty text")
        summary, summary_tokens = _fit(summary, settings.summary_max_token_limit, count)
        if not summary or len(summary) >= total:
            return _note(answer, "the summarizer returned a text that is not shorter")
        facts = ResultSummary(
            tokens=tokens,
            summary_tokens=summary_tokens,
            input_chars=len(shown),
            content_chars=total,
            duration_s=round(time.monotonic() - began, 6),
            original=answer.content,
        )
        content = f"{_say_summarized(answer, tokens, shown, total)}\n{summary}"
        return answer.model_copy(update={"content": content, "summary": facts})

    async def _read_whole(self, answer: ToolResult) -> str | bytes:
        """What is kept of a result that was cut; its text as it is, if it is whole or the rest cannot be read."""
        if answer.large is not None and answer.large.handle and answer.large.content_chars > len(answer.content):
            try:
                return await self._fetch(answer.large.handle)
            except TarsyTasksError as error:
                logger.warning("only the beginning and the end of a large result are summarized: %s", error)
        return answer.content


def _read_input(text: str | bytes, answer: ToolResult) -> tuple[str, int]:
    """What the function is given, and how many characters there are in all. Raises `ResultNotFound`."""
    if isinstance(text, bytes):
        assert answer.large is not None
        part = read_part(text, answer.large.handle, limit=_INPUT_BYTES)
        text, total = part.text, part.total_chars
    else:
        total = len(text)
        text = text[:_INPUT_BYTES]
    cut = text.encode("utf-8", "replace")[:_INPUT_BYTES].decode("utf-8", "ignore")
    return (cut if len(cut) == total else _end_at_line(cut)), total


def _end_at_line(text: str) -> str:
    end = text.rfind("\n", int(len(text) * (1 - _LINE)))
    return text if end < 0 else text[:end]


def _say_left_out(shown: str, total: int) -> str:
    return f"\n[{total - len(shown)} characters are left out here]" if total > len(shown) else ""


def _describe(call: SubmittedCall, settings: "Summarization") -> SummarizedCall:
    more = {"server": call.server, "tool": call.tool, "max_tokens": settings.summary_max_token_limit}
    fields: dict[str, Any] = {**dict(call.call), **more}
    return SummarizedCall.model_construct(None, **fields)


def _fit(summary: str, limit: int, count: Callable[[str], int]) -> tuple[str, int]:
    """A summary that has no more tokens than it may, and how many."""
    cut = summary[: limit * _LONGEST_TOKEN_CHARS]
    mark = _CUT_HERE if len(cut) < len(summary) else ""
    while (tokens := count(cut + mark)) > limit and cut:
        mark = _CUT_HERE
        cut = _end_at_line(cut[: int(len(cut) * _ROOM * limit / tokens)])
    return (cut + mark if cut else ""), tokens


def _say_summarized(answer: ToolResult, tokens: int, shown: str, total: int) -> str:
    what = "it" if total == len(shown) else f"its first {len(shown)} characters"
    sentence = f"This result has about {tokens} tokens. Below is a summary of {what}."
    if answer.large is not None and answer.large.handle:
        asked = json.dumps({"handle": answer.large.handle})
        sentence += f" To read it whole, call the tool `{READ_RESULT}` with {asked}; with `contains` it finds lines."
    return f"[{sentence}]"


def _note(answer: ToolResult, why: str) -> ToolResult:
    shown = "as it is" if answer.large is None else "cut"
    return answer.model_copy(update={"notes": (*answer.notes, f"{_NOTE}: {why}; the result is shown {shown}")})
