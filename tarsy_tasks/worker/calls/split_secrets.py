"""Secrets that an MCP server cut into pieces, wherever it liked: over the parts of a result, or over its strings.

Owns how these are found, which no piece shows by itself.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count, takewhile

from pydantic import JsonValue

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.worker.maskers import Masker

__all__ = ["are_one_document", "mask_borders", "mask_split"]

_LEAST_REACH, _MOST_REACH, _ALL_REACHES = 512, 8 * 1024, 256 * 1024
"""Characters on either side of a border that are searched together: the fewer parts, the more."""
_TOKEN = re.compile(r"[\w+/=.~%\-]*")
_LINE_OF_YAML = re.compile(r"\s*(?:-\s|---|#|[\"']?[\w.\-/]+[\"']?:(?:\s|$))")
_NOT_BEFORE_REST, _NOT_FIRST_OF_REST = "\r\n)]}>", "\r\n{[(<"


def mask_borders(texts: list[str], masker: Masker) -> list[str]:
    """The parts, without what is a secret only together with its neighbours: a server may cut where it likes."""
    if len(texts) < 2:
        return texts
    texts = masker.mask_known_pieces(texts)
    reach = min(_MOST_REACH, max(_LEAST_REACH, _ALL_REACHES // len(texts)))
    masked, tail = [*texts], ""
    for index, text in enumerate(texts):
        head = text[:reach]
        if _may_go_on(tail, head) and (together := masker.mask(tail + head)) != tail + head:
            before, after = masker.mask(tail), masker.mask(head)
            if together != before + after:
                end = before[_common(before, together) :]
                beginning = after[: len(after) - _common(after[::-1], together[::-1])]
                _mask_end(masked, texts, index, len(tail if MASK in end else end))
                # What has its name cut off would not be known any more.
                length = len(head if MASK in after else beginning)
                masked[index] = _without_beginning(text, length, is_all=length >= reach)
        tail = (tail + text[-reach:])[-reach:]
    return masked


def are_one_document(texts: Sequence[str], limit: int) -> bool:
    """Whether the parts are pieces of one document, in which a value is secret by what stands in another piece.

    Args:
        texts: The parts.
        limit: How many characters of them are looked at, all together.
    """
    pieces = [text for text in texts if text.strip()]
    if len(pieces) < 2 or not any(map(_is_cut_within, pieces, pieces[1:])):
        return False
    whole = "".join(pieces)[:limit]
    if "Secret" in whole:
        return True
    try:
        return whole.lstrip()[0] in "{[" and bool(json.loads(whole))
    except (ValueError, RecursionError):
        return False


def _is_cut_within(before: str, after: str) -> bool:
    """Whether the next part goes on where this one ends, rather than in a line of its own."""
    if before.lstrip()[0] in "{[":
        try:
            json.loads(before)
        except (ValueError, RecursionError):
            return True
        return False
    last, first = before[before.rfind("\n") + 1 :], after.partition("\n")[0]
    return not last or not (_LINE_OF_YAML.match(last) and _LINE_OF_YAML.match(first))


def _common(one: str, other: str) -> int:
    """With how many of the same characters both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _may_go_on(tail: str, head: str) -> bool:
    """Whether one secret can begin in a part and go on in the next."""
    if not tail.strip() or tail[-1] in _NOT_BEFORE_REST:
        return False
    return bool(head.strip()) and head[0] not in _NOT_FIRST_OF_REST


def _without_beginning(text: str, length: int, *, is_all: bool) -> str:
    """The text with so many characters masked, and if that is all that was looked at, as many more as a token has."""
    if not length:
        return text
    rest = _TOKEN.match(text, length) if is_all else None
    return MASK + text[rest.end() if rest else length :]


def _mask_end(masked: list[str], texts: list[str], stop: int, length: int) -> None:
    """Mask so many characters at the end of the texts before the one at `stop`."""
    for index in reversed(range(stop)):
        if length <= 0:
            return
        within = length < len(texts[index])
        masked[index] = masked[index][:-length] + MASK if within else MASK if texts[index] else ""
        length -= len(texts[index])


def mask_split(value: JsonValue, masker: Masker) -> JsonValue:
    """The value, without those of its strings that hold a piece of a known secret; whole ones stay."""
    texts = [*_texts_in(value)]
    ends = [*accumulate(map(len, texts))]
    split: set[int] = set()
    for start, end, _ in masker.find_known("".join(texts)) if len(texts) > 1 else ():
        first, last = bisect_right(ends, start), bisect_left(ends, end)
        split.update(range(first, last + 1) if first < last else ())
    if split:
        counted = count()
        value = _replace_texts(value, lambda text: MASK if next(counted) in split else text)
    return value


def _texts_in(value: JsonValue) -> Iterator[str]:
    """The strings that are values, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(item)


def _replace_texts(value: JsonValue, replace: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, dict):
        return {key: _replace_texts(item, replace) for key, item in value.items()}
    return [_replace_texts(item, replace) for item in value] if isinstance(value, list) else value
