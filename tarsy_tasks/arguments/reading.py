"""What comes of reading arguments: the object, as what it was read, and what had to be mended."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["ParsedArguments", "Reading", "reported"]


class Reading(StrEnum):
    """As what the arguments were read."""

    EMPTY = "empty"
    MAPPING = "mapping"
    """No text: the caller gave an object."""
    JSON = "json"
    ALMOST_JSON = "almost_json"
    YAML = "yaml"
    PAIRS = "pairs"
    VALUE = "value"
    """A JSON value that is no object."""
    TEXT = "text"
    """A bare text."""


@dataclass(frozen=True, slots=True)
class ParsedArguments:
    """Arguments, and how they came about.

    Attributes:
        arguments: JSON-safe, a copy of its own.
        reading: As what the text was read.
        repairs: A stable word for each kind of mending, in the order of use; empty when there was nothing to mend.
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
