"""What an MCP server asks for while it handles a call, and what it can be answered.

Owns the shapes that agents and people see and write (docs/input.md). It knows neither Redis nor MCP's own types;
whether answers fit what was asked is decided in `input_answers`.
"""

from collections.abc import Mapping
from operator import not_
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["INPUT_REQUIRED", "Answers", "InputAction", "InputQuestion"]

INPUT_REQUIRED = "input_required"
"""Why a call is parked whose server has asked something."""

InputAction = Literal["accept", "decline", "cancel"]
"""`accept`: here is the input, or the URL was visited; `decline`: no; `cancel`: nobody has decided."""
Answers = Mapping[str, Mapping[str, Any] | InputAction] | InputAction
"""By the name of each question: the values of its form, which accepts it, or a word. A word alone answers them all."""


class InputQuestion(BaseModel):
    """One question of an MCP server. All of it is the server's own text, masked.

    Attributes:
        name: By which it is answered.
        message: For the person who is asked.
        mode: `form`: values are wanted; `url`: the person is to visit a page, and nothing else is sent back.
        requested_schema: JSON Schema of the form: an object of plain values.
        url: Of the page; nobody has looked at it.
        warning: What the person has to know before they answer; empty if nothing is unusual.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    message: str = ""
    mode: Literal["form", "url"] = "form"
    requested_schema: dict[str, Any] = Field(default_factory=dict, exclude_if=not_)
    url: str = Field(default="", exclude_if=not_)
    warning: str = Field(default="", exclude_if=not_)
