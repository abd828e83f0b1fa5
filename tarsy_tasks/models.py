"""What travels between an agent and a worker, as versioned JSON.

Owns the shapes of a call, a tool and a result. It knows neither Celery nor MCP: workers fill these, agents read them,
and a foreign producer may write the same JSON by hand (docs/protocol.md).
"""

import hashlib
import json
from functools import cached_property
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.tool_names import function_name

__all__ = ["Attachment", "CallInfo", "ToolCall", "ToolDefinition", "ToolListing", "ToolResult"]

PROTOCOL_VERSION = 1
"""Version of every JSON shape in this module; raised when an older reader would misread a newer writer."""


class ToolCall(BaseModel):
    """One tool call as a model asked for it.

    Attributes:
        id: The model's own id, echoed in the result. Never a key: models repeat them.
        name: `server.tool`, or another form that `tool_names.resolve_tool_name` accepts.
        arguments: A mapping, or the text that the model wrote.
        idempotency_key: The same call of the same agent with the same key is made once; whoever asks again within an
            hour gets the same answer, unless that says that the call did not run (`unavailable`). None: each call is
            its own.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    arguments: dict[str, Any] | str | None = None
    idempotency_key: str | None = Field(default=None, min_length=1, max_length=1000)


class CallInfo(BaseModel):
    """The fourth argument of the task `tarsy.call_tool`: who asks, and how long they wait.

    Attributes:
        call_id: The model's id of the call.
        name: The name as it was asked for, echoed in the result.
        timeout_s: Seconds that the tool may take, from the moment a worker takes the call up. None: the server's own
            limit.
        deadline: When nobody waits any more, in seconds since the epoch by the clock of Redis. None: never.
        sent_at: When the call was sent, by the same clock; only to measure how long it waited.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = PROTOCOL_VERSION
    call_id: str = ""
    name: str = ""
    agent_id: str | None = None
    run_id: str | None = None
    timeout_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    deadline: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    sent_at: float | None = Field(default=None, gt=0, allow_inf_nan=False)


class ToolDefinition(BaseModel):
    """A tool that an agent may offer to its model.

    Attributes:
        name: Canonical name, `server.tool`.
        input_schema: JSON Schema of the arguments, as the MCP server gave it.
        annotations: MCP hints in their wire spelling, such as `readOnlyHint`. Claims of the server, not guarantees.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    server: str
    tool: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    annotations: dict[str, Any] = Field(default_factory=dict)

    def function_name(self, limit: int = 64) -> str:
        """A name for a model provider's function declaration; an executor accepts it as the name of a call.

        Raises:
            ValueError: The limit leaves no room for a recognizable name.
        """
        return function_name(self.server, self.tool, limit)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that a model is told of the tool: the same for the same definition, in every
        process.
        """
        told = [self.tool, self.description, self.input_schema, self.annotations]
        return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class ToolListing(BaseModel):
    """What one server offers; the result of the task `tarsy.list_tools` where that succeeded.

    Attributes:
        instructions: For models, how to use the server: the configured ones, or else the server's own.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = PROTOCOL_VERSION
    server: str
    tools: tuple[ToolDefinition, ...] = ()
    instructions: str = ""


class Attachment(BaseModel):
    """A part of a result that is not text.

    Attributes:
        type: The MCP content type: `image`, `audio`, `resource` or `resource_link`.
        size_bytes: Size of the content, known also when the content itself was left out.
        data: Base64 of the content; None for links and for what was too large to carry.
        text: The text of an embedded text resource.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str
    mime_type: str | None = None
    uri: str | None = None
    size_bytes: int | None = None
    data: str | None = None
    text: str | None = None


class ToolResult(BaseModel):
    """The answer to one call; there is exactly one, whatever happened.

    Attributes:
        content: What a model reads. For an error: what happened, whether the tool ran, what to do.
        structured: Structured content of the MCP result, or the value of a text that is JSON.
        error_code: The cause, None when the outcome is `ok`.
        repairs: What had to be done to the arguments, one stable word for each kind (docs/arguments.md); empty for a
            JSON object that fitted; of rejected ones the last word says why. Tells operators which prompts go wrong.
        attempts: How often the call was sent to the MCP server; 0 when it never was.
        duration_s: Seconds from the moment the worker took the call up until its answer was ready.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: Literal[1] = PROTOCOL_VERSION
    call_id: str
    name: str
    content: str
    structured: JsonValue = None
    attachments: tuple[Attachment, ...] = ()
    outcome: Outcome = Outcome.OK
    error_code: ErrorCode | None = None
    repairs: tuple[str, ...] = ()
    attempts: int = 0
    duration_s: float = 0.0

    @property
    def is_error(self) -> bool:
        return self.outcome is not Outcome.OK

    def __repr__(self) -> str:
        """What logs, events and Flower show of a result: how it ended, never what is in it."""
        ending = self.outcome if self.error_code is None else f"{self.outcome} {self.error_code}"
        done = "refused" if self.error_code is ErrorCode.INVALID_ARGUMENTS else "mended"
        mended = f", arguments {done}: {' '.join(self.repairs)}" if self.repairs else ""
        return f"<{self.name}: {ending}, {len(self.content)} characters, {self.duration_s:.3g} s{mended}>"

    def __json__(self) -> dict[str, Any]:
        """How kombu encodes a task's return value."""
        return self.model_dump(mode="json")

    @classmethod
    def from_error(
        cls, error: CallError, *, call_id: str, name: str, attempts: int = 0, duration_s: float = 0.0
    ) -> Self:
        """The answer to a call that `error` ended."""
        return cls(
            call_id=call_id,
            name=name,
            content=error.text,
            outcome=error.outcome,
            error_code=error.code,
            attempts=attempts,
            duration_s=duration_s,
        )
