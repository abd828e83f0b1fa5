"""Which values in JSON are secret: by their key, by other keys of the object, as items of a list, in a command line.

Owns these rules and the edits. `json_text` reads the values.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from tarsy_tasks.masking.commands import find_in_commands, is_program
from tarsy_tasks.masking.edits import MASK, Edit, apply_edits
from tarsy_tasks.masking.json_frames import Frame, rate
from tarsy_tasks.masking.json_reader import Kind, Token
from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.rules.answers import find_secret_keys
from tarsy_tasks.masking.rules.headers import find_in_header, is_header
from tarsy_tasks.masking.rules.vocabulary import COLLECTION_KEYS, NESTED_VALUE_KEYS, PAIR_NAME_KEYS, PAIR_VALUE_KEYS
from tarsy_tasks.masking.search import project
from tarsy_tasks.masking.values import is_item, is_label, is_made_up, is_prose, is_secret, looks_random

__all__ = ["JsonValues"]

_STRING = Kind.STRING
_VAULT = re.compile(r"://[^/]*vault[^/]*/secrets/")
_KEYS_OF_VAULT = re.compile(r"[^\[\]]{0,1000}\]\s*,\s*\"keys_base64\"")


class JsonValues:
    """The values of a JSON text; `edits` are the secrets, by where they begin."""

    def __init__(self, text: str) -> None:
        self.edits: dict[int, Edit] = {}
        self._text = text

    def mask_below(self, token: Token, frame: Frame) -> bool:
        """Mask a value of an object under a name: of `"password": {"value": …}`, or of `"passwords": {"root": …}`."""
        if frame.key.lower() in NESTED_VALUE_KEYS:
            return self._mask_named(token, frame.name)
        if frame.is_item or frame.name.lower() not in COLLECTION_KEYS or frame.key.lower() in PAIR_NAME_KEYS:
            return False
        said = self.said(token)
        return token.kind is _STRING and (looks_random(said) or is_made_up(said)) and self.replace(token, MASK)

    def _mask_named(self, token: Token, name: str) -> bool:
        rating = rate(name)
        return rating is not None and self.mask_as(token, rating, name)

    def mask_as(self, token: Token, rating: Strength | Literal["header"], name: str) -> bool:
        """Mask the value of a name, if the name belongs to a secret."""
        if token.kind is _STRING:
            said = self.said(token)
            if rating == "header":
                return self.replace(token, apply_edits(said, find_in_header(said, name, 0)))
            is_masked = (
                is_secret(said, rating, is_quoted=True)
                and not is_prose(said, is_quoted=True)
                and not is_label(name, said)
            )
            return is_masked and self.replace(token, MASK)
        word = self._text[token.start : token.end]
        if rating is Strength.STRONG and word not in ("true", "false", "null"):
            self.edits[token.start] = Edit(token.start, token.end, f'"{MASK}"')
            return True
        return False

    def mask_item(self, token: Token, frame: Frame) -> bool:
        """Mask an item of an array: of `"passwords": […]`, behind `"--password"`, or behind `"x-api-key"`."""
        said, previous = self.said(token), frame.previous
        frame.previous = said
        if frame.arguments or (not previous and is_program(said)):
            frame.arguments.append(token)
        for name in (frame.name, previous):
            if is_header(name):
                return self._mask_named(token, name)
        if previous.startswith("-") and not said.startswith("-") and "=" not in previous:
            return self._mask_named(token, previous)
        if frame.name == "keys" and _KEYS_OF_VAULT.match(self._text, token.end):
            return self.replace(token, MASK)
        ratings = (rate(frame.name), rate(previous))
        is_some = any(isinstance(rating, Strength) and is_item(said, rating) for rating in ratings)
        return is_some and self.replace(token, MASK)

    def mask_pair(self, frame: Frame) -> None:
        """Mask `{"name": "DB_PASSWORD", "value": …}`, also in JSON Patch, in a collection of secrets, or next to the
        URL of a vault."""
        scalars = {key.lower(): token for key, token in frame.scalars.items()}
        values = scalars.keys() & PAIR_VALUE_KEYS
        naming = PAIR_NAME_KEYS | {"path"} if "op" in scalars else PAIR_NAME_KEYS
        names = [self.said(scalars[key]) for key in scalars.keys() & naming] if values else []
        for value in values:
            if any(self._mask_named(scalars[value], name) for name in names):
                continue
            if frame.name.lower() in COLLECTION_KEYS:
                self.mask_as(scalars[value], Strength.WEAK if frame.name == "cookies" else Strength.LIKELY, "")
            elif _VAULT.search(self.said(scalars.get("id"))):
                self.mask_as(scalars[value], Strength.STRONG, "")

    def mask_arguments(self, tokens: Sequence[Token]) -> None:
        """Mask the secrets of a command line whose words are strings."""
        words = [self.said(token) for token in tokens]
        line = " ".join(words)
        starts = list(accumulate((len(word) + 1 for word in words), initial=0))
        for edit in find_in_commands(line, project(line)):
            index = bisect_right(starts, edit.start) - 1
            self.replace(tokens[index], words[index][: edit.start - starts[index]] + MASK)

    def mask_answer(self, frame: Frame, resource: str | None) -> None:
        """Mask values that other keys of the object mark as secret."""
        scalars = {key.lower(): token for key, token in frame.scalars.items()}
        said = {key: self._text[token.start : token.end] for key, token in scalars.items()}
        for key, strength in find_secret_keys(said, frame.name, resource):
            self.mask_as(scalars[key], strength, "")

    def mask_all(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.kind is _STRING:
                if token.end > token.start:
                    self.replace(token, MASK)
            elif self._text[token.start : token.end] != "null":
                self.edits[token.start] = Edit(token.start, token.end, f'"{MASK}"')

    def replace(self, token: Token, said: str) -> bool:
        """Replace the content of a string; returns whether it changed."""
        if said == self.said(token):
            return False
        raw = self._text[token.start : token.end]
        written = json.dumps(said, ensure_ascii=raw.isascii())[1:-1]
        self.edits[token.start] = Edit(token.start, token.end, written)
        return True

    def said(self, token: Token | None) -> str:
        """The content of a string, without escapes."""
        if token is None:
            return ""
        raw = self._text[token.start : token.end]
        if "\\" not in raw:
            return raw
        try:
            return json.loads(f'"{raw}"', strict=False)
        except ValueError:
            return raw  # cut off in an escape, or an invalid escape
