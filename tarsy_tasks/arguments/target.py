"""The tool that arguments are for: which reading its schema accepts.

Owns the decision whether an object, a guess, a value or a plain text becomes the arguments, or is rejected. An object
that the model wrote is used as it is, a guess must fit the schema, and a plain text fills the one required string
property unless it shows signs of a failed attempt at structure.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tarsy_tasks.arguments.attempts import find_attempt, is_cut_off
from tarsy_tasks.arguments.coercion import coerce, coerce_partly
from tarsy_tasks.arguments.envelope import is_named_call, may_be_envelope, objects_inside, open_envelope
from tarsy_tasks.arguments.formats import may_have_format
from tarsy_tasks.arguments.reading import ParsedArguments, Reading, reported
from tarsy_tasks.arguments.rejection import rejection
from tarsy_tasks.arguments.schema import UncheckedError, compile_schema
from tarsy_tasks.arguments.shape import Shape
from tarsy_tasks.arguments.values import SPACE, plain, read_scalar, unquoted
from tarsy_tasks.errors import ArgumentsError

__all__ = ["Target"]

_NOTHING = ("''", "``", "“”")
_DOUBT = "The arguments can be read in more than one way."
_TWO_LAYERS = (
    "The object can be the arguments, or a whole call with the arguments inside it. Write only the object of "
    "arguments; do not wrap it in a call or in another object."
)


class Target:
    """A tool's schema, applied to each reading."""

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        self._schema = compile_schema(schema)
        self._shape = self._schema.shape

    @property
    def properties(self) -> dict[str, Shape]:
        return self._shape.properties

    @property
    def takes_anything(self) -> bool:
        """It names no property and does not forbid any: the same as no schema."""
        return not self.properties and not self._shape.closed

    def object(
        self, arguments: dict[str, Any], tree: Callable[[], Any], reading: Reading, repairs: tuple[str, ...]
    ) -> ParsedArguments:
        """An object that the model wrote: it fits, is made to fit, or is rejected."""
        try:
            fits = self._schema.fits(arguments)
        except UncheckedError:
            # The server checks its arguments itself; a check here only gives a better message.
            return ParsedArguments(arguments, reading, (*repairs, "unchecked"))
        parsed = ParsedArguments(arguments, reading, repairs) if fits else self._coerced(tree(), reading, repairs)
        if may_be_envelope(arguments) and parsed is not None:
            parsed = self._whole_or_inside(parsed, arguments, reading, repairs)
        elif may_be_envelope(arguments):
            parsed = self._opened(arguments, reading, repairs)
        if parsed is None:
            raise rejection(self._schema, (*reported(reading, repairs), "unfit"), arguments=arguments)
        return parsed

    def _whole_or_inside(
        self, whole: ParsedArguments, arguments: dict[str, Any], reading: Reading, repairs: tuple[str, ...]
    ) -> ParsedArguments:
        """An object that fits, but has a key of a whole call (`arguments`) that is not a property of the tool."""
        is_call = is_named_call(arguments, self.properties)
        knows_some = self._names_some(arguments)
        if arguments.keys() == {"input"} or (self.takes_anything and not is_call and len(arguments) > 1):
            return whole
        inside = self._opened(arguments, reading, repairs)
        if inside is not None and not knows_some and (is_call or self.properties):
            return inside
        if inside is None and not (is_call and not knows_some):
            within = objects_inside(arguments, self.properties)
            if not any(self._names_some(each) and self.fitted(each, each, reading, ()) for each in within):
                return whole
        raise rejection(self._schema, (*reported(reading, repairs), "ambiguous"), _TWO_LAYERS)

    def _names_some(self, arguments: dict[str, Any]) -> bool:
        return not arguments.keys().isdisjoint(self.properties)

    def fitted(
        self, arguments: dict[str, Any], tree: Any, reading: Reading, repairs: tuple[str, ...]
    ) -> ParsedArguments | None:
        """A guess that fits or can be made to fit; else None."""
        if self.takes_anything and arguments.keys() != {"input"} and open_envelope(arguments, ()) is not None:
            return None
        with suppress(UncheckedError):
            if self._schema.fits(arguments):
                return ParsedArguments(arguments, reading, repairs)
            return self._coerced(tree, reading, repairs)
        return None

    def _coerced(self, tree: Any, reading: Reading, repairs: tuple[str, ...]) -> ParsedArguments | None:
        with suppress(UncheckedError):
            if made := coerce(self._schema, tree):
                return ParsedArguments(made[0], reading, (*repairs, *made[1]))
        return None

    def _opened(self, arguments: dict[str, Any], reading: Reading, repairs: tuple[str, ...]) -> ParsedArguments | None:
        """The arguments inside a whole call: `{"name": "pods_list", "arguments": {...}}`."""
        if arguments.keys() == {"input"} and isinstance(text := arguments["input"], str):
            # The result of reading a plain text without a schema; some models were taught to write it.
            known = "input" in self.properties or find_attempt(text, self.properties, "")
            return None if known else self._filled(text, reading, repairs)
        inside = open_envelope(arguments, self.properties)
        if isinstance(inside, str):
            is_attempt = find_attempt(inside, self.properties, "") is not None
            return None if is_attempt else self._filled(inside, reading, (*repairs, "whole_call"))
        return None if inside is None else self.fitted(plain(inside), inside, reading, (*repairs, "whole_call"))

    def value(self, text: str, value: Any) -> ParsedArguments:
        """A JSON value that is not an object."""
        if "input" in self.properties or self.takes_anything:
            parsed = self.fitted({"input": value}, {"input": value}, Reading.VALUE, ())
            if parsed is not None:
                return parsed
        if value is None or (isinstance(value, str) and not value.strip()):
            return self.object({}, dict, Reading.EMPTY, ())
        if isinstance(value, str):
            return self.text(value, (), "it is a JSON string, not an object", fenced=False, reading=Reading.VALUE)
        if not isinstance(value, list):
            parsed = self._filled(text.strip(SPACE), Reading.VALUE, ())
            if parsed is not None:
                return parsed
        kind = "a list" if isinstance(value, list) else f"the value {text.strip(SPACE)[:40]}"
        raise rejection(
            self._schema,
            (Reading.VALUE.value, "no_object"),
            f"The arguments are {kind}, and it is unclear which property they are for: write a JSON object.",
        )

    def text(
        self,
        text: str,
        repairs: tuple[str, ...],
        reason: str,
        *,
        fenced: bool,
        whole_fence: bool = False,
        reading: Reading = Reading.TEXT,
    ) -> ParsedArguments:
        """A plain text, perhaps a failed attempt at structure.

        Args:
            reason: Why it is not JSON.
            fenced: It was in a code fence for data, so arguments were expected.
            whole_fence: The whole text was fenced, so a fence inside is part of the value.
        """
        if not text.strip(SPACE) or text in _NOTHING:
            return self.object({}, dict, Reading.EMPTY, ())
        in_fence = f"The code fence cannot be read as arguments: {reason}." if fenced else None
        if attempt := in_fence or find_attempt(text, self.properties, reason, fences=whole_fence):
            raise rejection(
                self._schema, (reading.value, *repairs, "cut_off" if is_cut_off(attempt) else "broken"), attempt
            )
        if read_scalar(text) is None:
            return self.object({}, dict, Reading.EMPTY, ())
        if self.takes_anything and (parsed := self.fitted({"input": text}, {"input": text}, Reading.TEXT, repairs)):
            return parsed
        if (inner := unquoted(text)) is not None:
            text, repairs = inner, (*repairs, "quoted")
        parsed = self._filled(text, reading, repairs)
        if parsed is None:
            reason = "The arguments are plain text, and it is unclear which property they are for."
            raise rejection(self._schema, (reading.value, *repairs, "no_object"), reason)
        return parsed

    def _filled(self, text: str, reading: Reading, repairs: tuple[str, ...]) -> ParsedArguments | None:
        """The text as the one required string property, or as `input` where the tool has that."""
        required = list(self._shape.required)
        if len(required) > 1:
            required = [name for name in required if name in self.properties and self.properties[name].default is None]
        if not required and "input" in self.properties:
            required = ["input"]
        shape = self.properties.get(required[0]) if len(required) == 1 else None
        if shape is None or not shape.takes_text() or not may_have_format(shape.raw.get("format"), text):
            return None
        filled = {required[0]: text}
        return self.fitted(filled, filled, reading, (*repairs, "one_property"))

    def refused(self, doubt: str | None, arguments: dict[str, Any], repairs: tuple[str, ...]) -> ArgumentsError:
        """The rejection of a guess: its problems, or its two readings."""
        reason, why = "", "unfit"
        with suppress(UncheckedError):
            if self._schema.fits(coerce_partly(self._schema, arguments)):
                unknown = next((name for name in arguments if name not in self.properties), None)
                reason = f"`{unknown[:60]}` is not a property of this tool." if unknown else doubt or _DOUBT
                why = "unfit" if unknown else "ambiguous"
        return rejection(self._schema, (*repairs, why), reason, arguments)
