"""The result of reading arguments: the object, how it was read, and which repairs were needed."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["ParsedArguments", "Reading", "reported"]


class Reading(StrEnum):
    """How the arguments were read."""

    EMPTY = "empty"
    MAPPING = "mapping"
    """Not a text: the caller gave an object."""
    JSON = "json"
    ALMOST_JSON = "almost_json"
    YAML = "yaml"
    PAIRS = "pairs"
    VALUE = "value"
    """A JSON value that is not an object."""
    TEXT = "text"
    """A plain text."""


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """Arguments, and how they were read.

    Attributes:
        arguments: JSON-safe, an independent copy.
        reading: How the text was read.
        repairs: A stable word for each kind of repair, in the order of use; empty when none was needed.
    """

    arguments: dict[str, Any]
    reading: Reading
    repairs: tuple[str, ...] = ()

    @property
    def reported(self) -> tuple[str, ...]:
        """The words of `ToolResult.repairs`: the reading, unless it is the usual one, and the repairs."""
        return reported(self.reading, self.repairs)


def reported(reading: Reading, repairs: tuple[str, ...]) -> tuple[str, ...]:
    """The reading, unless it is the usual one, and the repairs."""
    usual = reading in (Reading.EMPTY, Reading.MAPPING, Reading.JSON)
    return repairs if usual else (reading.value, *repairs)
