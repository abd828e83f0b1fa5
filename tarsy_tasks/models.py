"""The data that agents and workers exchange, as versioned JSON.

Owns the shapes of a call, a tool and a result. It knows neither Celery nor MCP: workers build them, agents read them,
and another program may write the same JSON itself (docs/protocol.md).
"""

import hashlib
import json
from functools import cached_property, partial
from operator import eq, not_
from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tarsy_tasks.errors import CallError, OutcomeError
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.priorities import NORMAL, Priority
from tarsy_tasks.questions import InputQuestion
from tarsy_tasks.tool_names import function_name

__all__ = [
    "Attachment",
    "CallInfo",
    "FrozenModel",
    "LargeResult",
    "ParkedCall",
    "ResultPart",
    "ResultSummary",
    "ToolCall",
    "ToolDefinition",
    "ToolListing",
    "ToolResult",
]

PROTOCOL_VERSION = 1
"""Version of every JSON shape in this module; raised when an older reader would misread a newer writer."""


class FrozenModel(BaseModel):
    """Data that does not change. What a newer version adds to it is ignored."""

    model_config = ConfigDict(frozen=True)


class ToolCall(FrozenModel):
    """One tool call, as a model asked for it.

    Attributes:
        name: `server.tool`, or another form that `tool_names.resolve_tool_name` accepts.
        arguments: A mapping, or the text that the model wrote.
        id: The model's id of the call, echoed as `ToolResult.call_id`; empty if it has none. Not a key: models repeat
            ids. The id of the task is `PendingCall.id`.
        idempotency_key: The same call of the same agent with the same key is made once. Within an hour, another call
            with the key gets the same answer, unless the call did not run (`unavailable`). None: each call is made.
        priority: `interactive`, `normal` or `batch`; None: that of the executor.
        no_cache: The MCP server is asked even if an answer is kept (docs/result-cache.md); the new one replaces it.
    """

    id: str = ""
    name: str
    arguments: dict[str, Any] | str | None = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=1000)
    priority: Priority | None = Field(default=None, exclude_if=not_)
    no_cache: bool = Field(default=False, exclude_if=not_)


class RunSession(FrozenModel):
    """The isolated session that a call belongs to (docs/isolation.md).

    Attributes:
        run: All calls of a run to a server go to one session.
        executor: Which executor sent the call: the session ends when all of them are closed.
        continued: That executor knows of a state in the session: if nobody else does, it is lost.
    """

    run: str = Field(min_length=1, max_length=200)
    executor: str = Field(default="", max_length=64)
    continued: bool = Field(default=False, exclude_if=not_)


class CallInfo(FrozenModel):
    """The fourth argument of the task `tarsy.call_tool`: who calls, and how long they wait.

    Attributes:
        call_id: The model's id of the call; empty if it has none.
        name: The name as the agent wrote it, echoed in the result.
        agent_id: Who calls, as the message claims it: for the audit, and to keep idempotency keys of agents apart.
        run_id: In which run, for the audit.
        timeout_s: Seconds that the tool may take, from when a worker picks the call up. None: the server's own limit.
        deadline: When nobody waits any more, in seconds since the epoch by the clock of Redis. None: never.
        sent_at: When the call was sent, by the same clock; only to measure how long it waited.
        events: Somebody listens to the events of the call (docs/progress.md), so its worker asks the server for them.
        no_cache: As of `ToolCall`.
        reads_results: The sender can read the rest of a large result (docs/large-results.md), so a worker may cut it.
        session: The isolated session that it belongs to; None: the one that all share.
        park: The caller waits when the call is parked (docs/approval.md). If not, a call that has to wait for a person
            is rejected.
    """

    v: Literal[1] = PROTOCOL_VERSION
    call_id: str = ""
    name: str = ""
    agent_id: str | None = None
    run_id: str | None = None
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    deadline: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    sent_at: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    events: bool = Field(default=False, exclude_if=not_)
    no_cache: bool = Field(default=False, exclude_if=not_)
    reads_results: bool = Field(default=False, exclude_if=not_)
    park: bool = Field(default=False, exclude_if=not_)
    session: RunSession | None = Field(default=None, exclude_if=not_)


class ParkedCall(FrozenModel):
    """Why a call waits that is parked; stored as the result of its task while that has the state `PARKED`.

    Attributes:
        reason: `approval`: a person has to approve it. `input_required`: its server has asked something.
        server: Id of the MCP server.
        tool: Name of the tool on its server.
        text: What a model can be told.
        since: When it was parked, in seconds since the epoch by the clock of Redis.
        until: When it is answered in any case.
        questions: What the server has asked; empty for other reasons.
        digest: Of what it asked now: an answer names it, so that it cannot be taken for one to other questions.
        holds_session: It does not wait in Redis alone: the session with its server waits, too, and a worker.
    """

    v: Literal[1] = PROTOCOL_VERSION
    reason: str
    server: str
    tool: str
    text: str = ""
    since: float
    until: float
    questions: tuple[InputQuestion, ...] = Field(default=(), exclude_if=not_)
    digest: str = Field(default="", exclude_if=not_)
    holds_session: bool = Field(default=False, exclude_if=not_)


class ToolDefinition(FrozenModel):
    """A tool that an agent may offer to its model.

    Attributes:
        name: Canonical name, `server.tool`.
        server: Id of the MCP server; empty for the two tools of `ToolList.behind_search`.
        tool: Name of the tool on its server.
        description: For models, as the server gives it, masked.
        input_schema: JSON Schema of the arguments, as the MCP server gave it.
        annotations: MCP hints in their wire spelling, such as `readOnlyHint`. Claims of the server, not guarantees.
        title: A name for people; empty without one.
        output_schema: JSON Schema of the structured content of its results; empty without one.
        icons: For people, in their wire spelling; left out if they are long.
        meta: `_meta` as the server gives it; left out if it is long.
        execution: How it can be run, in the wire spelling, such as `taskSupport`.
    """

    name: str
    server: str
    tool: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    annotations: dict[str, Any] = Field(default_factory=dict)
    title: str = Field(default="", exclude_if=not_)
    output_schema: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)
    icons: tuple[dict[str, Any], ...] = Field(default=(), exclude_if=not_)
    meta: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)
    execution: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)

    @property
    def is_for_models(self) -> bool:
        """Whether models may be offered it: a tool of an MCP App can be for the app only (`_meta.ui.visibility`)."""
        ui = self.meta.get("ui")
        visibility: Any = cast("dict[str, Any]", ui).get("visibility") if isinstance(ui, dict) else None
        return not isinstance(visibility, list) or "model" in visibility

    def function_name(self, limit: int = 64) -> str:
        """A name for a model provider's function declaration; an executor accepts it as the name of a call.

        Raises:
            ValueError: The limit leaves no room for a recognizable name.
        """
        return function_name(self.server, self.tool, limit) if self.server else self.tool

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that a model sees of the tool; the same in every process and every version,
        because approvals are kept by it.
        """
        shown = [self.tool, self.description, self.input_schema, self.annotations]
        return hashlib.sha256(json.dumps(shown, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class ToolListing(FrozenModel):
    """What one server offers; the result of the task `tarsy.list_tools` if that succeeded.

    Attributes:
        left_out: Tools that the server lists and that are not valid in MCP, by name, and why. They cannot be called.
        instructions: For models, how to use the server: the configured text, or else the server's own.
    """

    v: Literal[1] = PROTOCOL_VERSION
    server: str
    tools: tuple[ToolDefinition, ...] = ()
    left_out: dict[str, str] = {}
    instructions: str = ""


class Attachment(FrozenModel):
    """A part of a result that is not text.

    Attributes:
        type: The MCP content type: `image`, `audio`, `resource` or `resource_link`.
        size_bytes: Size of the content, even if the content itself was left out.
        data: Base64 of the content; None for links and for content that is too large.
        text: The text of an embedded text resource.
        name: Of a link, as are `title`, for people, and `description`; None without one.
        annotations: MCP hints in their wire spelling: `audience`, `priority`, `lastModified`. Claims of the server.
    """

    type: str
    mime_type: str | None = None
    uri: str | None = None
    size_bytes: int | None = None
    data: str | None = None
    text: str | None = None
    name: str | None = Field(default=None, exclude_if=not_)
    title: str | None = Field(default=None, exclude_if=not_)
    description: str | None = Field(default=None, exclude_if=not_)
    annotations: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)


class LargeResult(FrozenModel):
    """What a result that was cut had in all (docs/large-results.md).

    Attributes:
        handle: By which `read_result` gives the rest; empty if it was not kept.
        content_chars: The characters of its whole `content`.
        structured_chars: Those of its structured value as JSON, if that was left out; otherwise 0.
        kept_bytes: How much of the agent's quota it takes, compressed; 0 if it was not kept.
    """

    handle: str = ""
    content_chars: int = Field(ge=0)
    structured_chars: int = Field(default=0, ge=0)
    kept_bytes: int = Field(default=0, ge=0)


class ResultPart(FrozenModel):
    """A part of a large result, as `read_result` returns it.

    Attributes:
        text: The part; with `contains`, the lines in question, each with where it begins.
        next_offset: Where to go on; None at the end.
        total_chars: The characters of the whole.
        matches: With `contains`, how many lines of `text` contain it; otherwise None.
    """

    handle: str
    part: Literal["content", "structured"]
    text: str
    offset: int
    next_offset: int | None
    total_chars: int
    matches: int | None = None


class ResultSummary(FrozenModel):
    """What a summary stands for, in the `content` of a result (docs/summaries.md).

    Attributes:
        tokens: About how many tokens the text has in all.
        summary_tokens: Those of the summary, without the line before it.
        input_chars: So many characters of it were given to the summarizer.
        content_chars: So many there are in all.
        duration_s: How long it took, until the summary was there.
        original: `content` as it would be without a summary.
    """

    tokens: int
    summary_tokens: int
    input_chars: int
    content_chars: int
    duration_s: float
    original: str = Field(repr=False)


class ToolResult(FrozenModel):
    """The answer to one call; there is exactly one, whatever happened.

    Attributes:
        call_id: `ToolCall.id`; empty if the call had none.
        name: The tool, as the agent wrote it.
        content: What a model reads. For an error: what happened, whether the tool ran, what to do next.
        structured: Structured content of the MCP result, or the value of a text that is JSON.
        attachments: The parts of the MCP result that are not text.
        outcome: How the call ended.
        error_code: The cause, None when the outcome is `ok`. A worker of a later version may have a code that is only
            text here.
        repairs: What was changed in the arguments, one stable word for each kind (docs/arguments.md); empty for a JSON
            object that fitted. If they were rejected, the last word says why. It shows which prompts need work.
        attempts: How often the call was sent to the MCP server; 0 when it never was.
        duration_s: Seconds from when the worker picked the call up until its answer was ready.
        server: Id of the MCP server; empty if it is not known.
        tool: Name of the tool on its server, as it is listed; as it was called if the server was not asked.
        task_id: `PendingCall.id`; empty for a call that was not sent, and in what Celery stores, which has it beside.
        answered_at: When the answer was given, in seconds since the epoch by the clock of the worker, or of this
            process if no worker gave it. With an idempotency key it may be long ago. None in what Celery stores.
        content_types: The MCP content types of which `content` and `attachments` are made, such as `text`, `image`.
        notes: What is not as it should be with an answer that counts all the same: the code of the error that it would
            be, and why. `INVALID_RESULT`: the structured content does not fit the tool's output schema.
            `SUMMARY_FAILED`: there is no summary (docs/summaries.md).
        retry_after_s: Of a call that was over a limit: in how many seconds to try again. None for all others, and if
            that would not help.
        priority: By which the call waited. A worker of a later version may have one that is only text here.
        principal: Who called, as far as a worker could verify that (docs/limits.md); empty for an anonymous call.
        cached: It is the answer to another call, which was kept or was just being made (docs/result-cache.md).
        large: What a result that was cut had in all, and how to read the rest; None for one that is whole.
        summary: What the summary that is in `content` stands for; None without one.
    """

    v: Literal[1] = PROTOCOL_VERSION
    call_id: str
    name: str
    content: str
    structured: JsonValue = None
    attachments: tuple[Attachment, ...] = ()
    outcome: Outcome = Outcome.OK
    error_code: ErrorCode | str | None = Field(default=None, union_mode="left_to_right")
    repairs: tuple[str, ...] = ()
    attempts: int = 0
    duration_s: float = 0.0
    server: str = Field(default="", exclude_if=not_)
    tool: str = Field(default="", exclude_if=not_)
    task_id: str = Field(default="", exclude_if=not_)
    answered_at: float | None = Field(default=None, exclude_if=not_)
    content_types: tuple[str, ...] = Field(default=(), exclude_if=not_)
    notes: tuple[str, ...] = Field(default=(), exclude_if=not_)
    retry_after_s: float | None = Field(default=None, exclude_if=not_)
    priority: Priority | str = Field(default=NORMAL, exclude_if=partial(eq, NORMAL))
    principal: str = Field(default="", exclude_if=not_)
    cached: bool = Field(default=False, exclude_if=not_)
    large: LargeResult | None = Field(default=None, exclude_if=not_)
    summary: ResultSummary | None = Field(default=None, exclude_if=not_)

    @property
    def is_error(self) -> bool:
        """Whether the outcome is not `ok`."""
        return self.outcome is not Outcome.OK

    def raise_for_outcome(self) -> Self:
        """This result, if its outcome is `ok`.

        Raises:
            OutcomeError: It is not; the error's `result` is this result.
        """
        if self.is_error:
            raise OutcomeError(f"{self.name}: {self.outcome} ({self.error_code}): {self.content:.500}", self)
        return self

    def __repr__(self) -> str:
        """For logs, events and Flower: how the call ended, never its content."""
        ending = self.outcome if self.error_code is None else f"{self.outcome} {self.error_code}"
        done = "rejected" if self.error_code is ErrorCode.INVALID_ARGUMENTS else "repaired"
        repaired = f", arguments {done}: {' '.join(self.repairs)}" if self.repairs else ""
        noted = f", noted: {' '.join(note.partition(':')[0] for note in self.notes)}" if self.notes else ""
        cached = ", cached" if self.cached else ""
        cached += ", summarized" if self.summary else ""
        size = f"{len(self.content)} characters"
        return f"<{self.name}: {ending}, {size}, {self.duration_s:.3g} s{cached}{repaired}{noted}>"

    def __json__(self) -> dict[str, Any]:
        """How kombu encodes a task's return value."""
        return self.model_dump(mode="json")

    @classmethod
    def from_error(cls, error: CallError, **facts: Any) -> Self:
        """The answer to a call that ended with an error; `facts` are fields that do not come from the error."""
        after = error.retry_after_s
        return cls(content=error.text, outcome=error.outcome, error_code=error.code, retry_after_s=after, **facts)
