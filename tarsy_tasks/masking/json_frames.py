"""What is open at a place of JSON: the objects and arrays around it, and what of their keys counts for it.

Owns that. Which values are secret by it is for `json_values`, and `json_text` reads them.
"""

from functools import lru_cache
from typing import Literal, TypeAlias

from tarsy_tasks.masking.json_reader import Token
from tarsy_tasks.masking.kubernetes import DATA_KEYS
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.rules.headers import is_header
from tarsy_tasks.masking.rules.vocabulary import COLLECTION_KEYS, SCHEMA_VALUE_KEYS

__all__ = ["Frame", "Rating", "rate", "says_something"]

Rating: TypeAlias = Strength | Literal["header"] | None


@lru_cache(maxsize=4096)
def rate(name: str) -> Rating:
    return "header" if is_header(name) else rate_name(name)


@lru_cache(maxsize=4096)
def says_something(name: str) -> bool:
    """Whether a name counts for values below it."""
    return rate(name) is not None or name.lower() in COLLECTION_KEYS


class Frame:
    """An object or array that is not closed yet.

    Attributes:
        is_object: Whether it is an object.
        is_item: Whether it stands in an array.
        name: The key that it stands under; of an array in an array, that of the outer one.
        name_says_something: Whether that counts for its values.
        key: The key of its own that was read last.
        rating: What that says of its value.
        previous: The string that was read last, in an array.
        arguments: The strings of an array, if the first is that of a program that takes a secret.
        scalars: Its values that are no object and no array, by their keys.
        has_value_key: Whether one of these keys is that of a value of which something beside it tells what it is.
        owner: The object under whose `data` or `stringData` it stands.
        data: What stands under its own.
        is_secret: Whether it is a Secret whatever its `kind`: nothing else has a `stringData`.
        undecided: The same of objects in it that have no `kind`.
    """

    def __init__(self, *, is_object: bool, outer: "Frame | None", name: str) -> None:
        self.is_object = is_object
        self.is_item = outer is not None and not outer.is_object
        self.name = name if outer is None else outer.name_below
        self.name_says_something = says_something(self.name)
        self.key = ""
        self.rating: Rating = None
        self.previous = ""
        self.arguments: list[Token] = []
        self.scalars: dict[str, Token] = {}
        self.has_value_key = False
        self.owner: Frame | None = None
        if outer is not None:
            self.owner = outer if outer.is_object and outer.key in DATA_KEYS else outer.owner
        self.data: list[Token] = []
        self.is_secret = False
        self.undecided: list[Token] = []

    @property
    def name_below(self) -> str:
        """The name that an object or array has which begins now."""
        return self.name if not self.is_object or (self.name and self.key in SCHEMA_VALUE_KEYS) else self.key
