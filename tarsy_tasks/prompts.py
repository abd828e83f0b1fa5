"""The prompts of MCP servers, as agents see them.

Owns their shapes: what a server lists, the messages that getting one gives, and completed arguments. It knows neither
Celery nor MCP.
"""

from operator import not_
from typing import Any, Self

from pydantic import Field, ValidationError

from tarsy_tasks.models import Attachment, FrozenModel, ToolResult

__all__ = ["Completion", "PromptArgument", "PromptDefinition", "PromptMessage", "PromptResult"]


class PromptArgument(FrozenModel):
    """An argument of a prompt; its value is a text.

    Attributes:
        description: As the server gives it, masked.
        required: Whether the prompt cannot be got without it.
    """

    name: str
    title: str = Field(default="", exclude_if=not_)
    description: str = Field(default="", exclude_if=not_)
    required: bool = False


class PromptDefinition(FrozenModel):
    """A prompt that a server lists.

    Attributes:
        server: Id of the MCP server.
        name: On its server.
        title: A name for people; empty without one.
        description: As the server gives it, masked.
        icons: For people, in their wire spelling; left out if they are long.
        meta: `_meta` as the server gives it; left out if it is long.
    """

    server: str
    name: str
    title: str = Field(default="", exclude_if=not_)
    description: str = Field(default="", exclude_if=not_)
    arguments: tuple[PromptArgument, ...] = ()
    icons: tuple[dict[str, Any], ...] = Field(default=(), exclude_if=not_)
    meta: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)


class PromptMessage(FrozenModel):
    """One message of a prompt, for a model.

    Attributes:
        role: `user` or `assistant`.
        content: The text; of what is not text, a line that stands for it.
        attachments: What is not text.
    """

    role: str
    content: str = ""
    attachments: tuple[Attachment, ...] = Field(default=(), exclude_if=not_)


class PromptResult(ToolResult):
    """The answer to getting one prompt; there is exactly one, whatever happened.

    It is a `ToolResult`: its `content` has all messages as one text.
    """

    @classmethod
    def of(cls, answer: ToolResult) -> Self:
        """The answer to getting a prompt."""
        return cls.model_construct(answer.model_fields_set, **vars(answer))

    @property
    def description(self) -> str:
        """What the server says of the prompt, masked; empty for an error."""
        return str(self.structured.get("description", "")) if isinstance(self.structured, dict) else ""

    @property
    def messages(self) -> tuple[PromptMessage, ...]:
        """For the model, in order. Empty for an error."""
        found = self.structured.get("messages") if isinstance(self.structured, dict) else None
        try:
            return tuple(map(PromptMessage.model_validate, found)) if isinstance(found, list) else ()
        except ValidationError:  # of an interceptor
            return ()


class Completion(FrozenModel):
    """Values that an argument can have.

    Attributes:
        values: At most 100, the best first, masked.
        total: How many there are; None if the server does not say.
        has_more: Whether there are more than these.
    """

    values: tuple[str, ...] = ()
    total: int | None = None
    has_more: bool = False
