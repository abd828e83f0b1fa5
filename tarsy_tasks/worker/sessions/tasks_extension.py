"""The tasks extension of MCP, as a client: a server may answer a call with a task, and is asked for its result later.

Owns what goes over the wire: the declaration, the answer that is a task, `tasks/get` and `tasks/cancel`; and what is
made of what a server says in them. A server may say anything. What becomes of the call is in `calls.server_tasks`.

Source: the extension `io.modelcontextprotocol/tasks`, `specification/draft/tasks.md` of modelcontextprotocol/ext-tasks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NoReturn, cast

from mcp import Client
from mcp.client import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.dispatcher import CallOptions
from mcp.shared.inbound import MCP_NAME_HEADER, encode_header_value
from mcp_types import CallToolResult, ElicitRequest, ElicitResult, InputRequests, Result
from pydantic import BeforeValidator, StringConstraints, TypeAdapter, ValidationError

from tarsy_tasks.worker.transport.elicitation_handlers import ElicitParams

__all__ = [
    "CreatedTask",
    "TaskCreated",
    "TaskState",
    "TasksExtension",
    "cancel_task",
    "get_task",
    "is_final",
    "update_task",
]

_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.5, 300.0
_USUAL_POLL_S = 5.0
"""Where a server says nothing, or what cannot be used."""
_LONGEST_ID = 1024
_SHOWN_CHARS = 2000
_FINAL = ("completed", "failed", "cancelled")
_CANCEL_S = 5.0


def _milliseconds(value: Any) -> float | None:
    """A number of milliseconds, in seconds; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return value / 1000 if math.isfinite(value) and value >= 0 else None
    except OverflowError:
        return None


def _read_text(value: Any) -> str:
    return value[:_SHOWN_CHARS] if isinstance(value, str) else ""


_Seconds = Annotated[float | None, BeforeValidator(_milliseconds)]
_Id = Annotated[str, StringConstraints(min_length=1, max_length=_LONGEST_ID)]


def _poll_s(asked_s: float | None) -> float:
    return _USUAL_POLL_S if asked_s is None else min(max(asked_s, _SHORTEST_POLL_S), _LONGEST_POLL_S)


class CreatedTask(Result):
    """The answer to a call that is a task. Only its id has to be usable."""

    result_type: Literal["task"]
    task_id: _Id
    status: Annotated[str, BeforeValidator(_read_text)] = ""
    poll_interval_ms: _Seconds = None

    is_error: ClassVar[bool] = False

    @property
    def poll_s(self) -> float:
        """In how many seconds the server is asked for the first time."""
        return 0.0 if is_final(self.status) else _poll_s(self.poll_interval_ms)


class TaskCreated(Exception):
    """A call was answered with a task."""

    def __init__(self, task: CreatedTask) -> None:
        super().__init__(task)
        self.task = task


class TasksExtension(ClientExtension):
    """Declares that this client understands tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def claims(self) -> Sequence[ResultClaim[Any]]:
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=_raise),)


async def _raise(task: CreatedTask, _: ClaimContext) -> NoReturn:
    """The SDK would have it wait here for the result; the call frees its slot instead."""
    raise TaskCreated(task)


@dataclass(frozen=True, slots=True)
class TaskState:
    """What a server says of a task.

    Attributes:
        status: `working`, `input_required`, `completed`, `failed`, `cancelled`, or a word that nobody knows.
        message: What it says of that; unmasked.
        poll_s: In how many seconds it is asked again.
        ttl_s: How long it keeps the task, from its creation on; None: without a limit.
        result: Of one that is `completed`.
        error: Code and message of one that is `failed`.
        asked: What one that is `input_required` asks, by the keys of the server.
        asks_else: Some of that is nothing that a person is asked.
    """

    status: str
    message: str = ""
    poll_s: float = _USUAL_POLL_S
    ttl_s: float | None = None
    result: CallToolResult | None = None
    error: tuple[int, str] = (0, "")
    asked: Mapping[str, ElicitParams] = field(default_factory=dict[str, ElicitParams])
    asks_else: bool = False


def is_final(status: str) -> bool:
    """Whether a task with that status goes on no more."""
    return status in _FINAL


_RESULT: TypeAdapter[CallToolResult] = TypeAdapter(CallToolResult)
_REQUESTS: TypeAdapter[InputRequests] = TypeAdapter(InputRequests)


async def get_task(client: Client, task: str, timeout_s: float) -> TaskState:
    """Ask for a task, and its result if it is done.

    Raises:
        MCPError: The server answered with an error, or not at all.
        ValidationError: Its answer cannot be used.
    """
    found = await _ask(client, "tasks/get", task, timeout_s)
    status = found.get("status")
    if found.get("taskId") != task:
        raise _unusable("taskId", "it is not that of the task that was asked for", found.get("taskId"))
    if not isinstance(status, str):
        raise _unusable("status", "it has no status", status)
    message = _read_text(found.get("statusMessage"))
    poll_s, ttl_s = _poll_s(_milliseconds(found.get("pollIntervalMs"))), _milliseconds(found.get("ttlMs"))
    if status == "input_required":
        asked = _REQUESTS.validate_python(found.get("inputRequests"), by_name=False)
        questions = {key: each.params for key, each in asked.items() if isinstance(each, ElicitRequest)}
        return TaskState(status, message, poll_s, ttl_s, asked=questions, asks_else=len(questions) < len(asked))
    state = TaskState(status[:_SHOWN_CHARS], message, poll_s, ttl_s)
    if status == "completed":
        return TaskState(status, message, result=_RESULT.validate_python(found.get("result"), by_name=False))
    return TaskState(status, message, error=_read_error(found.get("error"))) if status == "failed" else state


async def update_task(client: Client, task: str, answers: Mapping[str, ElicitResult], timeout_s: float) -> None:
    """Answer what a task asks. Raises as `get_task`."""
    dumped = {key: each.model_dump(by_alias=True, mode="json", exclude_none=True) for key, each in answers.items()}
    await _ask(client, "tasks/update", task, timeout_s, inputResponses=dumped)


async def cancel_task(client: Client, task: str) -> None:
    """Ask the server to cancel a task; it may do so later, or not at all. Raises as `get_task`."""
    await _ask(client, "tasks/cancel", task, _CANCEL_S)


async def _ask(client: Client, method: str, task: str, timeout_s: float, **more: Any) -> dict[str, Any]:
    session: Any = client.session
    params: dict[str, Any] = {"taskId": task, **more}
    options: CallOptions = {"timeout": timeout_s}
    session._stamp({"method": method, "params": params}, options)
    # Gateways find the instance by it that has the task.
    options.setdefault("headers", {})[MCP_NAME_HEADER] = encode_header_value(task)
    return await session._dispatcher.send_raw_request(method, params, options)


def _read_error(found: Any) -> tuple[int, str]:
    error: dict[str, Any] = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    code = error.get("code")
    return code if isinstance(code, int) else 0, _read_text(error.get("message"))


def _unusable(field: str, why: str, found: Any) -> ValidationError:
    shown = found if isinstance(found, str | int | float | None) else type(found).__name__
    return ValidationError.from_exception_data(
        "Task", [{"type": "value_error", "loc": (field,), "input": shown, "ctx": {"error": ValueError(why)}}]
    )
