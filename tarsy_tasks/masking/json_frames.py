"""The open objects and arrays at a position in JSON, and which of their keys matter there.

Owns this state. `json_values` decides which values are secret, `json_text` reads them.
"""

from functools import lru_cache
from typing import Literal, TypeAlias

from tarsy_tasks.masking.json_reader import Token
from tarsy_tasks.masking.kubernetes import DATA_KEYS
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.rules.headers import is_header
from tarsy_tasks.masking.rules.vocabulary import COLLECTION_KEYS, SCHEMA_VALUE_KEYS

__all__ = ["Frame", "Rating", "is_relevant_name", "rate"]

Rating: TypeAlias = Strength | Literal["header"] | None


@lru_cache(maxsize=4096)
def rate(name: str) -> Rating:
    return "header" if is_header(name) else rate_name(name)


@lru_cache(maxsize=4096)
def is_relevant_name(name: str) -> bool:
    """Whether a name matters for the values below it."""
    return rate(name) is not None or name.lower() in COLLECTION_KEYS


class Frame:
    """An object or array that is not closed yet."""

    def __init__(self, *, is_object: bool, outer: "Frame | None", name: str) -> None:
        self.is_object = is_object
        self.is_item = outer is not None and not outer.is_object
        self.name = name if outer is None else outer.name_below  # of an array in an array: that of the outer one
        self.is_name_relevant = is_relevant_name(self.name)
        self.key = ""  # the last one that was read, and its strength
        self.rating: Rating = None
        self.previous = ""  # the string that was read last, in an array
        self.arguments: list[Token] = []  # the strings of an array, if the first is a program that takes a secret
        self.scalars: dict[str, Token] = {}
        self.has_value_key = False  # a key for a value that another key describes
        self.owner: Frame | None = None  # the object under whose `data` or `stringData` it is
        if outer is not None:
            self.owner = outer if outer.is_object and outer.key in DATA_KEYS else outer.owner
        self.data: list[Token] = []  # the values under its own
        self.is_secret = False  # whatever its `kind`: nothing but a Secret has a `stringData`
        self.undecided: list[Token] = []  # the data of objects in it without a `kind`

    @property
    def name_below(self) -> str:
        """The name of an object or array that begins now."""
        return self.name if not self.is_object or (self.name and self.key in SCHEMA_VALUE_KEYS) else self.key
