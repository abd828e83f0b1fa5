"""What holds for every result that is cut, and for every way to read the rest."""

import json
import random
import re
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import CallToolResult, TextContent

from tarsy_tasks import ToolResult
from tarsy_tasks.agent.large_results import read_part
from tarsy_tasks.broker.large_results import LargeWrite, pack, unpack
from tarsy_tasks.worker.calls.content import build_result
from tarsy_tasks.worker.calls.large_results import cut_result
from tarsy_tasks.worker.maskers import build_masker
from tests.unit.masking_corpus import Case, load_cases

LIMIT = 16_384
QUOTA = 64 * 1024 * 1024
HANDLE = "5b0d7437-7f0e-4b8a-9a54-3f7b8d1a1c11"
PIECE = 8
"""So many characters of a secret in a row are too many."""
masker = build_masker()
SECRETS = [case for case in load_cases("secrets") if len(case.text) < 2000]

characters = st.characters(exclude_categories=["Cs"])
texts = st.text(characters | st.sampled_from("\n\r\u2028é😀"), max_size=300)
lines = st.lists(st.text(st.sampled_from("abß😀 \r"), max_size=30), max_size=30).map("\n".join)


def cut(text: str, structured: Any = None, handle: str = HANDLE) -> tuple[ToolResult, LargeWrite | None]:
    result = ToolResult(call_id="", name="s.t", content=text, structured=structured)
    return cut_result(result, LIMIT, ":", handle, QUOTA)


def parts_of(content: str) -> tuple[str, str, str]:
    """The sentences of a result that was cut, its beginning and its end."""
    sentences, _, shown = content.partition("\n")
    found = re.search(r"\n\[(\d+) characters are left out here\]\n", shown)
    assert found is not None
    return sentences, shown[: found.start()], shown[found.end() :]


@given(texts, texts)
def test_what_was_packed_is_unpacked(content: str, structured: str) -> None:
    assert unpack(pack(content, structured)) == (content, structured)


@given(st.text(st.characters(), max_size=50))
def test_half_characters_are_kept_as_something_else(content: str) -> None:
    found, _ = unpack(pack(content, ""))
    assert len(found) == len(content), "offsets stay right"
    assert found == content or any("\ud800" <= each <= "\udfff" for each in content)


@given(texts, st.integers(1, 120), st.integers(0, 400))
def test_pages_are_the_text_from_an_offset_on(text: str, limit: int, offset: int) -> None:
    whole, read, place = pack(text, ""), "", offset
    while True:
        part = read_part(whole, HANDLE, offset=place, limit=limit)
        assert (part.offset, part.total_chars, part.matches) == (place, len(text), None)
        assert len(part.text) <= limit
        read += part.text
        if part.next_offset is None:
            break
        assert part.next_offset == place + limit
        place = part.next_offset
    assert read == text[offset:]


@given(lines, st.text(st.sampled_from("abß😀\n"), min_size=1, max_size=4), st.integers(60, 300), st.integers(0, 40))
def test_lines_are_found_where_they_are(text: str, contains: str, limit: int, offset: int) -> None:
    whole, place = pack(text, ""), offset
    covered: set[int] = set()
    while True:
        part = read_part(whole, HANDLE, offset=place, limit=limit, contains=contains)
        assert len(part.text) <= limit
        begins = [int(each) for each in re.findall(r"(?m)^(\d+): ", part.text)]
        assert len(begins) == part.matches
        for begin, end in zip_longest(begins, begins[1:]):
            _, _, rest = part.text.partition(f"{begin}: ")
            shown = rest if end is None else rest.partition(f"\n{end}: ")[0]
            assert text.startswith(shown, begin)
            assert contains in shown
            covered |= {begin + at.start() for at in re.finditer(f"(?={re.escape(contains)})", shown)}
        if part.next_offset is None:
            break
        assert part.next_offset > place, "it goes on"
        place = part.next_offset
    # Of occurrences that overlap, those that begin within another one need not be shown.
    assert {at.start() for at in re.finditer(re.escape(contains), text) if at.start() >= offset} - covered == set() or (
        contains[0] in contains[1:]
    )


@given(st.integers(0, 60_000), st.integers(0, 500))
def test_a_long_line_is_shown_around_what_was_found(before: int, after: int) -> None:
    text = f"{'x' * before}needle{'y' * after}"
    part = read_part(pack(text, ""), HANDLE, contains="needle")
    assert (part.matches, part.next_offset) == (1, None)
    offset, _, line = part.text.partition(": ")
    assert text.startswith(line, int(offset))
    assert "needle" in line
    assert len(line) <= 406


@given(st.integers(0), st.integers(LIMIT - 2, 4 * LIMIT), st.integers(1, 40_000))
@settings(max_examples=60)
def test_the_ends_are_those_of_the_text(seed: int, length: int, line_chars: int) -> None:
    rng = random.Random(seed)
    text = "".join("\n" if rng.random() < 1 / line_chars else rng.choice("ab é😀") for _ in range(length))
    result, kept = cut(text)
    if length <= LIMIT:
        assert kept is None
        assert result.content == text
        assert result.large is None
        return
    assert kept is not None
    assert unpack(kept.whole) == (text, "")
    for each in (kept.result, kept.refused):
        sentences, head, tail = parts_of(each.content)
        assert len(each.content) <= LIMIT
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) > 3 * LIMIT // 8, "most of the limit is used"
        assert len(tail) > LIMIT // 8
        assert f"[{length - len(head) - len(tail)} characters are left out here]" in each.content
        assert (f'"offset": {len(head)}' in sentences) == (each is kept.result)
    assert result.large is not None
    assert (result.large.handle, result.large.content_chars) == (HANDLE, length)
    assert result.large.kept_bytes == len(kept.whole)
    assert kept.refused.large == result.large.model_copy(update={"handle": "", "kept_bytes": 0})


@given(st.lists(texts, min_size=1, max_size=30), st.integers(1, 400))
def test_a_structured_value_is_whole_or_null(value: list[str], times: int) -> None:
    structured = value * times
    result, kept = cut("short", structured)
    if kept is None:
        assert result.structured == structured
        assert result.large is None
    else:
        assert result.structured is None
        assert result.content.endswith("\nshort")
        part = read_part(kept.whole, HANDLE, limit=10**7, part="structured")
        assert json.loads(part.text) == structured


@given(st.sampled_from(SECRETS), st.integers(-200, 2200), st.sampled_from(["head", "tail", "limit"]))
@settings(max_examples=150)
def test_no_cut_shows_a_part_of_a_secret(case: Case, shift: int, border: str) -> None:
    """Wherever it is: at the end of the beginning, at the beginning of the end, or where nothing more is kept."""
    limit, length = 40_000, 60_000
    room = LIMIT - 1024
    place = {"head": int(room * 0.75), "tail": 30_000 - int(room * 0.25), "limit": limit}[border] - shift
    around = "some words of a log. "
    before = f"{(around * (place // len(around) + 1))[: max(0, place - 2)]}\n\n"
    total = length if border == "limit" else 30_000
    after = f"\n\n{(around * (total // len(around) + 1))[: max(0, total - len(before) - len(case.text))]}"
    found = CallToolResult(content=[TextContent(type="text", text=f"{before}{case.text}{after}")])
    built = build_result(found, masker, limit=limit, call_id="", name="s.t", attempts=1, duration_s=0.1)
    result, kept = cut_result(built, LIMIT, ":", HANDLE, QUOTA)
    assert kept is not None
    alone = masker.mask(f"{before}{case.text}{after}")
    for shown in (result.content, kept.refused.content, *unpack(kept.whole)):
        for secret in case.secrets:
            pieces = {secret[at : at + PIECE] for at in range(len(secret) - PIECE + 1)}
            left = {piece for piece in pieces if piece in shown}
            assert not {piece for piece in left if piece not in alone}, "more than where nothing is cut"


@pytest.mark.parametrize("handle", ["", "a:b", "x" * 65, "../x", "é"])
def test_what_cannot_be_a_handle_is_none(handle: str) -> None:
    result, kept = cut("x" * 20_000, handle=handle)
    assert kept is None
    assert result.large is not None
    assert not result.large.handle
    assert "cannot be a handle" in result.content
