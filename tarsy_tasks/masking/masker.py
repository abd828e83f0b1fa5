"""The masker, which every text passes before it leaves a worker.

Owns the order of the searches, and the handling of a text that cannot be searched. The searches are the other modules
of this package; those that know more of the structure of a text run first.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from tarsy_tasks.masking.announced_lines import ANNOUNCEMENTS, find_announced_lines
from tarsy_tasks.masking.assignments import ASSIGNED, find_assigned
from tarsy_tasks.masking.blocks import may_hold_blocks
from tarsy_tasks.masking.commands import ARRAYS, COMMANDS, find_in_commands
from tarsy_tasks.masking.custom import CustomPatterns
from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.encoded import ENCODED, find_encoded, mask_encoded
from tarsy_tasks.masking.forms import FORMS, LINE_FORMS, find_forms, find_in_lines
from tarsy_tasks.masking.harmless import hide_harmless
from tarsy_tasks.masking.html_tables import find_in_html_tables
from tarsy_tasks.masking.json_text import JsonText, confine, find_json, may_hold_json
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.kubernetes import find_in_yaml, find_inline
from tarsy_tasks.masking.languages import find_in_other_languages, may_hold_words
from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.masking.names import STEMS
from tarsy_tasks.masking.prefixes import blank_prefixes
from tarsy_tasks.masking.private_keys import BORDERS, find_private_keys
from tarsy_tasks.masking.rules.answers import CLUES
from tarsy_tasks.masking.rules.groups import DEFAULT_GROUPS, find_patterns
from tarsy_tasks.masking.search import Places, project, unescape
from tarsy_tasks.masking.sql import STATEMENTS, find_in_sql
from tarsy_tasks.masking.tables import HEADINGS, find_in_tables

if TYPE_CHECKING:
    from pydantic import JsonValue

__all__ = ["Masker", "build_masker", "mask_text"]

_NOTICE = "[masked whole: this text could not be searched for secrets]"
_LEAST_SLACK, _MAX_SLACK = 4 * 1024, 64 * 1024
"""The number of characters that are searched in addition to those that are kept; a secret that is cut off at their end
is shorter than an eighth of it."""
_MAX_DEPTH = 8
"""The depth to which texts in texts are searched; deeper ones are masked whole."""
_KINDS = (
    r"(?:^|[\s{,\"'\-\[])(?:data|stringData)\\*[\"']?[ \t]*:",
    r"\\+u00[0-7]",  # a letter that is written as an escape, in JSON
    rf"(?i:name|key|id|label|field|variable|header|setting|parameter)\\*\"\s*:\s*\\*\"[\w./\- ]*{STEMS}[\w.\-]*\\*\"",
    rf"{STEMS}[\w.\-]*\\*\"\s*:\s*[{{\[]",
    r"\\*\"op\\*\"\s*:\s*\\*\"(?:add|replace|test)\\*\"",  # JSON Patch
    r"vault[\w.\-]*/secrets/",
    rf"{STEMS}[\w ]*</t[hd]>",
    rf"\"-[\w\-]*{STEMS}[\w.\-]*\"\s*,\s*\"",  # each item in a line of its own
)

_escapes = Places([r"\\"])
_SIGNS = (
    ASSIGNED,
    HEADINGS,
    BORDERS,
    STATEMENTS,
    *ANNOUNCEMENTS,
    *COMMANDS,
    ARRAYS,
    *CLUES,
    *_KINDS,
    *(form.pattern for form in (*FORMS, *LINE_FORMS)),
)
_anything = Places(_SIGNS)
_anything_at_all = Places([*_SIGNS, ENCODED])
"""The first search, and the only one for most texts: each search releases the GIL, and then has to wait for it."""


class _Draft:
    """A text while it is masked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._done: list[tuple[int, int]] = []
        self._projection: bytes | None = None
        self._suspicious: bytes | None = None

    @property
    def projection(self) -> bytes:
        """The projection for the searches, with finished stretches blanked out."""
        if self._projection is None:
            projection = project(self.text)
            if self._done:
                blanked = bytearray(projection)
                for start, end in self._done:
                    blanked[start:end] = bytes(end - start)
                projection = bytes(blanked)
            self._projection = projection
        return self._projection

    @property
    def suspicious(self) -> bytes:
        """The same without harmless text that is common in logs."""
        if self._suspicious is None:
            self._suspicious = hide_harmless(self.projection)
        return self._suspicious

    def apply(self, edits: Iterable[Edit]) -> None:
        """Apply the edits that overlap no finished stretch, or cover it completely."""
        wanted = sorted(edits)
        if not wanted:
            return
        starts = [start for start, _ in self._done]
        covered: set[int] = set()

        made: list[Edit] = []
        for edit in wanted:
            touched = self._done[max(0, bisect_right(starts, edit.start) - 1) : bisect_left(starts, edit.end)]
            touched = [(start, end) for start, end in touched if end > edit.start]
            if all(edit.start <= start and end <= edit.end for start, end in touched):
                covered.update(start for start, _ in touched)
                made.append(edit)
        self._rewrite(made, [stretch for stretch in self._done if stretch[0] not in covered])

    def apply_last(self, edits: Iterable[Edit]) -> None:
        """Apply edits that take masks into account, also in finished stretches."""
        self._rewrite(sorted(edits), [])

    def apply_json(self, stretches: Sequence[JsonText]) -> None:
        """Apply the edits of stretches of JSON, which are then finished."""
        edits = [edit for stretch in stretches for edit in stretch.edits]
        self._rewrite(edits, [(stretch.start, stretch.end) for stretch in stretches])

    def _rewrite(self, edits: Sequence[Edit], done: Sequence[tuple[int, int]]) -> None:
        """Apply the edits, and update the positions of the finished stretches. Of two edits that overlap, the second
        replaces the rest."""
        if not edits and not done:
            return
        self._projection = self._suspicious = None
        parts: list[str] = []
        shifts: list[tuple[int, int]] = [(0, 0)]
        copied = shift = 0
        for start, end, replacement in edits:
            if end <= copied:
                continue
            if start >= copied:
                parts += self.text[copied:start], replacement
                shift += len(replacement) - (end - start)
            else:
                shift -= end - copied
            copied = end
            shifts.append((end, shift))
        parts.append(self.text[copied:])
        self.text = "".join(parts)
        places = [place for place, _ in shifts]

        def moved(offset: int) -> int:
            return offset + shifts[bisect_right(places, offset) - 1][1]

        self._done = [(moved(start), moved(end)) for start, end in done]


@dataclass(frozen=True)
class Masker:
    """Masks texts and JSON values, as `build_masker` made it. Safe to share between threads.

    Attributes:
        elsewhere: Masks a text in another process, if that is worth it; None if it does not.
    """

    patterns: CustomPatterns | None = None
    known: KnownSecrets = field(default_factory=KnownSecrets)
    is_enabled: bool = True
    elsewhere: Callable[[str], str | None] | None = None

    def mask(self, text: str) -> str:
        """The text with every secret replaced; JSON stays JSON. It takes linear time, and a long text does not block
        other threads. A text that cannot be searched is replaced by a notice."""
        if isinstance(text, MaskedText):
            return text
        try:
            return self._mask(text, 0)
        except Exception:  # not logged, because the log is masked, too
            return _NOTICE

    def mask_json(self, value: "JsonValue") -> "JsonValue":
        """A JSON value with its strings masked, and whole values under names of secrets."""
        if isinstance(value, str):
            return self.mask(value)
        try:
            text = json.dumps(value, ensure_ascii=False)
            masked = self._mask(text, 0)
            return value if masked == text else json.loads(masked)
        except Exception:
            return _NOTICE

    def mask_base64(self, data: str) -> str:
        """Base64 data, masked if it is text; "" for other data that contains a secret."""
        try:
            return mask_encoded(data, self._mask_inner(0), self._is_secret_in)
        except Exception:
            return ""

    def mask_start(self, text: str, length: int) -> str:
        """The first `length` characters of the masked text. Cutting before masking could halve a secret, which would
        then not be recognized."""
        slack = min(max(length, _LEAST_SLACK), _MAX_SLACK)
        searched = text[: length + slack]
        masked = self.mask(searched)
        if len(searched) < len(text):
            masked = masked[: -slack // 8]  # masks may be so short that the end of the searched text is visible
        return masked[:length]

    def find_known(self, text: str) -> list[Edit]:
        """The places of known secrets, from left to right."""
        return sorted(self.known.find(text, project(text)))

    def mask_known_pieces(self, texts: Sequence[str]) -> list[str]:
        """The texts, without the pieces of known secrets that go from one into the next; whole ones stay."""
        masked = [*texts]
        ends = [*accumulate(map(len, texts))]
        for start, end, _ in reversed(self.find_known("".join(texts))):
            first, last = bisect_right(ends, start), bisect_left(ends, end)
            for index in range(first, last + 1) if first < last else ():
                offset = ends[index] - len(texts[index])
                begins, stops = max(start - offset, 0), end - offset
                masked[index] = masked[index][:begins] + MASK + masked[index][stops:]
        return masked

    def mask_known_beginning(self, text: str) -> str:
        """The text, without the beginning of a known secret at its end."""
        start = self.known.find_beginning(text)
        return text[:start] + MASK if start < len(text) else text

    def _is_secret_in(self, text: str) -> bool:
        projection = project(text)
        found = (self.known.find(text, projection), find_private_keys(text), find_forms(text, projection))
        return any(True for _ in chain.from_iterable(found if self.is_enabled else found[:1]))

    def _mask(self, text: str, depth: int) -> str:
        projection = project(text)
        if self._is_harmless(text, projection):
            return text
        if not depth and self.elsewhere is not None and (masked := self.elsewhere(text)) is not None:
            return masked
        draft = _Draft(text)
        draft.apply(_confined(draft, self.known.find(text, projection)))
        if self.is_enabled:
            self._mask_built_in(draft, depth)
            if self.patterns:
                draft.apply_last(_confined(draft, self.patterns.find(draft.text)))
        return draft.text

    def _is_harmless(self, text: str, projection: bytes) -> bool:
        """Whether there is nothing in it that could be a secret, as in most texts."""
        if next(self.known.find(text, projection), None):
            return False
        return not self.is_enabled or not (self.patterns or self._may_hold_secrets(text, projection))

    def _mask_built_in(self, draft: _Draft, depth: int) -> None:
        if not self._may_hold_secrets(draft.text, draft.projection):
            return
        mask_string = self._mask_inner(depth)
        if may_hold_json(draft.text, draft.projection) and (hits := self._hits(draft.suspicious)):
            draft.apply_json(list(find_json(draft.text, draft.projection, hits, mask_string)))
        if _is_any_in(draft.suspicious, _anything) or may_hold_words(draft.text):
            self._mask_outside_json(draft, mask_string)
        draft.apply(find_encoded(draft.text, unescape(draft.projection), mask_string))

    def _may_hold_secrets(self, text: str, projection: bytes) -> bool:
        if may_hold_words(text) or (self.patterns and b"\\" in projection):
            return True
        return _is_any_in(projection, _anything_at_all)

    def _mask_outside_json(self, draft: _Draft, mask_string: Callable[[str], str]) -> None:
        draft.apply(find_in_yaml(draft.text, draft.projection))
        projections = {draft.suspicious, unescape(draft.suspicious)}
        draft.apply(
            (
                *find_inline(draft.text, draft.projection),
                *find_private_keys(draft.text),
                *find_in_tables(draft.text, draft.projection),
                *find_in_other_languages(draft.text),
                *find_in_html_tables(draft.text),
                *find_announced_lines(draft.text, draft.projection),
                *find_in_sql(draft.text, draft.projection),
                *find_in_commands(draft.text, draft.projection),
                *chain.from_iterable(find_forms(draft.text, each) for each in projections),
                *chain.from_iterable(find_in_lines(draft.text, each) for each in projections),
            )
        )
        draft.apply(find_assigned(draft.text, draft.suspicious))
        if "Secret" in draft.text or may_hold_blocks(draft.text):
            self._mask_behind_prefixes(draft, mask_string)

    def _mask_behind_prefixes(self, draft: _Draft, mask_string: Callable[[str], str]) -> None:
        """The Secrets and blocks of YAML in a diff, in quoted lines and so on."""
        view = blank_prefixes(draft.text)
        if view != draft.text:
            projection = project(view)
            stretches = find_json(view, projection, self._hits(projection), mask_string)
            draft.apply(edit for stretch in stretches for edit in stretch.edits)
            draft.apply(find_in_yaml(view, projection))
            if may_hold_blocks(view):
                view = blank_prefixes(draft.text)
                draft.apply(find_assigned(view, project(view)))

    def _hits(self, projection: bytes) -> list[int]:
        """The offsets at which there may be something to mask. For patterns of the configuration, strings with escapes
        must be decoded, so all escapes count."""
        hits = {hit for each in {projection, unescape(projection)} for hit in _anything.find(each)}
        if self.patterns:
            hits.update(_escapes.find(projection))
        return sorted(hits)

    def _mask_inner(self, depth: int) -> Callable[[str], str]:
        def mask_string(said: str) -> str:
            return self._mask(said, depth + 1) if depth < _MAX_DEPTH else MASK

        return mask_string


def build_masker(
    groups: Iterable[str] | None = None,
    *,
    patterns: Sequence[str] = (),
    known: KnownSecrets | None = None,
    is_enabled: bool = True,
) -> Masker:
    """The masker for groups of patterns.

    Args:
        groups: Names of groups or of single patterns, in addition to what is always masked; None: `basic`.
        patterns: More patterns, in RE2 syntax; the first group of a pattern is masked, or else the whole match.
        known: Values that are masked wherever they appear.
        is_enabled: False: only the known values are masked.

    Raises:
        ValueError: There is no such group, or a pattern is invalid; the text says which.
    """
    optional = find_patterns(DEFAULT_GROUPS if groups is None else groups)
    custom = [*optional.values(), *patterns]
    return Masker(CustomPatterns(custom) if custom else None, known or KnownSecrets(), is_enabled)


def mask_text(text: str, *, groups: Iterable[str] | None = None, patterns: Iterable[str] = ()) -> str:
    """The text with every secret replaced by `__MASKED__`, as in results of MCP servers. For your own texts: prompts,
    logs, reports.

    Args:
        text: Of any length and format; JSON stays JSON.
        groups: As for `build_masker`, such as `security` or `email`.
        patterns: As for `build_masker`.

    Returns:
        The masked text; a notice if the text could not be searched.

    Raises:
        ValueError: There is no such group, or a pattern is invalid; the text says which.
    """
    return _cached_masker(None if groups is None else tuple(groups), tuple(patterns)).mask(text)


@lru_cache(maxsize=32)
def _cached_masker(groups: tuple[str, ...] | None, patterns: tuple[str, ...]) -> Masker:
    return build_masker(groups, patterns=patterns)


def _is_any_in(projection: bytes, places: Places) -> bool:
    unescaped = unescape(projection)
    return places.are_in(projection) or (unescaped != projection and places.are_in(unescaped))


def _confined(draft: _Draft, found: Iterable[Edit]) -> list[Edit]:
    """Edits that ignore the syntax of JSON, adapted so that JSON stays JSON."""
    edits = sorted(found)
    if not edits:
        return edits
    free = iter(edits)
    starts = [edit.start for edit in edits]
    confined: list[Edit] = []
    for stretch in find_json(draft.text, draft.projection, starts, str):
        inside = edits[bisect_left(starts, stretch.start) : bisect_left(starts, stretch.end)]
        confined += confine(draft.text, stretch, inside)
        starts_inside = {edit.start for edit in inside}
        free = filter(lambda edit, inside=starts_inside: edit.start not in inside, free)
    return sorted((*confined, *free))
