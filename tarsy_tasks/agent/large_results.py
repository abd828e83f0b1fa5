"""Reading large results in parts, for agents and for their models.

Owns what is asked of Redis, the parts, and the tool `tarsy.read_result`, which this process answers itself. How the
whole is kept is `broker.large_results`; it may be anything, and as large as a string of Redis.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from tarsy_tasks.agent.connection import connection_of
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal
from tarsy_tasks.agent.results import answer_with
from tarsy_tasks.agent.submitted import SubmittedCall
from tarsy_tasks.agent.waiting import retry_until
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.large_results import READ_RESULT, DamagedResult, is_handle, unpack
from tarsy_tasks.errors import BrokerUnavailable, CallError, ResultNotFound
from tarsy_tasks.models import ResultPart, ToolDefinition, ToolResult
from tarsy_tasks.outcomes import ErrorCode

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["PAGE_CHARS", "READ_RESULT_TOOL", "Part", "ResultReader", "check_request", "read_kept", "read_part"]

Part = Literal["content", "structured"]

PAGE_CHARS = 16_384
"""Characters of a part, if nobody says how many."""
_MOST_PAGE_CHARS = 65_536
"""The most that a model can ask for."""
_MOST_BYTES = 32 * 1024 * 1024
_LINE_CHARS = 400
"""So much is shown of a line that contains a text."""
_BEFORE_CHARS = 120
"""So much of that may come before the text."""
_NOT_READ = "Nothing was read."
READ_RESULT_TOOL = ToolDefinition(
    name=READ_RESULT,
    server=READ_RESULT.partition(".")[0],
    tool=READ_RESULT.partition(".")[2],
    description="Read on in a result of a tool that was too long to be shown whole. The shortened result names its "
    "`handle`. Without `contains` it returns the characters from `offset` on; with `contains` the lines that contain "
    "this text, each with the offset at which it begins.",
    input_schema={
        "type": "object",
        "properties": {
            "handle": {"type": "string", "description": "As the shortened result names it."},
            "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "The first character."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MOST_PAGE_CHARS,
                "default": PAGE_CHARS,
                "description": "How many characters to return at most.",
            },
            "contains": {"type": "string", "minLength": 1, "description": "Only lines with this text, as it is."},
            "part": {"enum": [*get_args(Part)], "default": "content", "description": "Of the result."},
        },
        "required": ["handle"],
        "additionalProperties": False,
    },
    annotations={"readOnlyHint": True, "openWorldHint": False},
)


@dataclass(eq=False)
class ResultReader:
    """Reads the large results of one agent; `find_app`, `agent_id` and `timeout_s` as for `CallDispatcher`.

    Attributes:
        has_cut: A result of this agent was cut, and can be read.
    """

    find_app: "Callable[[], Celery]"
    agent_id: str | None
    timeout_s: float
    has_cut: bool = field(default=False, init=False)

    async def fetch(self, handle: str) -> bytes:
        """What is kept under a handle, as it is in Redis. On the background loop.

        Raises:
            ResultNotFound: Nothing is.
            BrokerUnavailable: Redis could not be reached in time, or does not allow it.
        """
        if not is_handle(handle):
            raise _not_found(handle)
        connection, deadline = connection_of(self.find_app()), time.monotonic() + self.timeout_s
        await connection.replies.connect(deadline, _NOT_READ)
        command = _read_command(keys.result_owner(connection.agent, self.agent_id), handle)
        redis = connection.replies.redis
        try:
            async with asyncio.timeout(self.timeout_s):
                [whole] = await retry_until(deadline, lambda: redis.execute(command))
        except TimeoutError:
            raise BrokerUnavailable(f"Redis did not answer within {self.timeout_s:g} s. {_NOT_READ}") from None
        except connection_errors() as error:
            if not is_refusal(error):
                raise BrokerUnavailable(f"Redis could not be reached ({error}). {_NOT_READ}") from error
            raise BrokerUnavailable(
                f"Redis does not allow this user to read large results ({error}). {_NOT_READ} An operator has to write "
                "its ACL rules again (`tarsy-tasks acl`)."
            ) from error
        if not whole:
            raise _not_found(handle)
        return whole

    async def answer(self, call: SubmittedCall) -> None:
        """Answer a call of the tool `tarsy.read_result`. On the background loop."""
        began = time.monotonic()
        try:
            found = await self._read(call)
            call.end(
                ToolResult(
                    call_id=call.call.id,
                    name=call.call.name,
                    content=_show(found),
                    server=call.server,
                    tool=call.tool,
                    priority=call.priority,
                    duration_s=round(time.monotonic() - began, 6),
                    answered_at=time.time(),
                )
            )
        except CallError as error:
            call.end(answer_with(error, call, round(time.monotonic() - began, 6)))
        except ResultNotFound as error:
            call.end(answer_with(CallError(ErrorCode.RESULT_NOT_FOUND, str(error)), call))
        except Exception as error:
            call.fail(error)

    async def _read(self, call: SubmittedCall) -> ResultPart:
        asked = await asyncio.to_thread(_read_arguments, call.arguments)
        handle = asked.pop("handle")
        whole = await self.fetch(handle)
        return await asyncio.to_thread(read_part, whole, handle, **asked)


def read_kept(handle: str, owners: Iterable[str], execute: Callable[..., bytes]) -> bytes:
    """What is kept under a handle for the first of these owners who has it; empty if none has.

    Args:
        owners: Each a `keys.result_owner`.
        execute: Runs a command of Redis.
    """
    if not is_handle(handle):
        return b""
    return next(filter(None, (execute(*_read_command(owner, handle)) for owner in owners)), b"")


def _read_command(owner: str, handle: str) -> tuple[str | int, ...]:
    return ("GETRANGE", keys.large_result_key(owner, handle), 0, _MOST_BYTES)


def read_part(
    whole: bytes,
    handle: str,
    *,
    offset: int = 0,
    limit: int = PAGE_CHARS,
    contains: str | None = None,
    part: Part = "content",
) -> ResultPart:
    """A part of what is kept under a handle. Arguments and errors are those of `ToolExecutor.read_result`."""
    try:
        content, structured = unpack(whole)
    except DamagedResult as error:
        raise ResultNotFound(
            f"What is kept under the handle {handle} is not a large result: {error}. Call the tool again."
        ) from None
    text = content if part == "content" else structured
    if contains is None:
        end = min(offset + limit, len(text))
        found, matches = text[offset:end], None
    else:
        found, matches, end = _find_lines(text, contains, offset, limit)
    more = end if end < len(text) else None
    return ResultPart(
        handle=handle,
        part=part,
        text=found,
        offset=offset,
        next_offset=more,
        total_chars=len(text),
        matches=matches,
    )


def check_request(handle: object, offset: object, limit: object, contains: object, part: object) -> None:
    """Raises `ValueError` for what cannot be asked for."""
    if not isinstance(handle, str):
        raise ValueError(f"handle must be a text, not {type(handle).__name__}")
    for name, number, least in (("offset", offset, 0), ("limit", limit, 1)):
        if type(number) is not int or not least <= number:
            raise ValueError(f"{name} must be a whole number from {least}, not {number!r:.50}")
    if contains is not None and (not isinstance(contains, str) or not contains):
        raise ValueError("contains must be a text that is not empty, or None")
    if part not in get_args(Part):
        raise ValueError(f"part must be one of {', '.join(get_args(Part))}, not {part!r:.50}")


def _find_lines(text: str, contains: str, offset: int, limit: int) -> tuple[str, int, int]:
    """The lines that contain a text, how many, and where to go on."""
    lines: list[str] = []
    place, chars = offset, 0
    while (at := text.find(contains, place)) >= 0:
        begins = max(text.rfind("\n", max(offset, at - _BEFORE_CHARS), at) + 1, offset, at - _BEFORE_CHARS)
        latest = max(begins + _LINE_CHARS, at + len(contains))
        ends = text.find("\n", at + len(contains), latest)
        ends = min(latest if ends < 0 else ends, len(text))
        line = f"{begins}: {text[begins:ends]}"
        if lines and chars + len(line) > limit:
            return "\n".join(lines), len(lines), place
        lines.append(line[:limit] if not lines else line)
        chars += len(line) + 1
        place = ends
    return "\n".join(lines), len(lines), len(text)


def _read_arguments(arguments: str | None) -> dict[str, Any]:
    from tarsy_tasks.arguments import read_arguments  # most agents never read on

    return dict(read_arguments(arguments, READ_RESULT_TOOL.input_schema).arguments)


def _show(found: ResultPart) -> str:
    """A part, for a model."""
    if found.matches is None:
        what = f"characters {found.offset} to {found.offset + len(found.text)} of {found.total_chars}"
    else:
        what = f"{found.matches} lines from character {found.offset} on, of {found.total_chars} characters"
    more = "the end is reached" if found.next_offset is None else f"go on with offset {found.next_offset}"
    return f"[{what}; {more}]\n{found.text}"


def _not_found(handle: str) -> ResultNotFound:
    return ResultNotFound(
        f"There is nothing to read under the handle {handle:.64}. It is not one of this agent, or the result is no "
        "longer kept. Call the tool again, and ask for less."
    )
