"""Messages with too many values, parts or entries: refused, or cut, before anything costly is done with them."""

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCResponse

from tarsy_tasks.broker.json_values import SLICE_BYTES, count_values, has_more_values
from tarsy_tasks.worker.transport.message_bounds import ENTRIES_LIMIT, PARTS_LIMIT, VALUES_LIMIT, check_values
from tarsy_tasks.worker.transport.messages import parse_message
from tarsy_tasks.worker.transport.transport_errors import MESSAGE_TOO_LARGE, TooManyError

JSON = st.recursive(
    st.none() | st.integers() | st.text('a"\\,[{é\n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('k"\\,[{'), inner),
)


def parse(result: Any, **more: Any) -> Any:
    text = json.dumps({"jsonrpc": "2.0", "id": 7, "result": result, **more}).encode()
    return parse_message(text, len(text))


def count(value: Any) -> int:
    """Commas and opening brackets, as JSON has them."""
    if isinstance(value, dict | list):
        items: list[Any] = [*(cast("Any", value).values() if isinstance(value, dict) else cast("Any", value))]
        return 1 + max(0, len(items) - 1) + sum(map(count, items))
    return 0


@given(JSON, st.booleans(), st.integers(1, 7))
def test_values_are_counted_and_what_is_in_strings_is_not(value: Any, is_ascii: bool, slice_bytes: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert sum(count_values(text, slice_bytes)) == count(value)


@given(JSON, st.booleans(), st.integers(0, 20))
def test_more_values_than_may_be_are_noticed(value: Any, is_ascii: bool, most: int) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii).encode()
    assert has_more_values(text, most) is (count(value) > most)


@pytest.mark.parametrize("text", ['"', '\\"', "\\", '"\\', "\\" * 100 + '"', ",", '",['])
def test_strings_hide_no_values(text: str) -> None:
    """However many there are, and whatever is in them."""
    for value in ([text] * 1000, [text * 1000] * 10, {text * 1000: [[text, 1, 2]] * 300}):
        for is_ascii in (True, False):
            encoded, values = json.dumps(value, ensure_ascii=is_ascii).encode(), count(value)
            assert not has_more_values(encoded, values)
            assert has_more_values(encoded, values - 1)


def test_a_text_full_of_commas_is_one_value() -> None:
    content = [{"type": "text", "text": 'a,b,"[c]",{d}\\\n' * VALUES_LIMIT}]
    assert parse({"content": content}).result["content"] == content


@pytest.mark.parametrize("row", ["0", "[]", '{"a": {}}'])
def test_an_answer_with_too_many_values_is_an_error(row: str) -> None:
    message = parse({"structuredContent": {"rows": [json.loads(row)] * (VALUES_LIMIT + 1)}})
    assert isinstance(message, JSONRPCError)
    assert (message.id, message.error.code) == (7, MESSAGE_TOO_LARGE)
    assert "more than 100000 values" in message.error.message


def test_as_many_values_as_may_be_are_read() -> None:
    value = [0] * (VALUES_LIMIT - 10)
    assert isinstance(parse({"structuredContent": {"rows": value}}), JSONRPCResponse)


def test_counting_ends_at_the_limit() -> None:
    with pytest.raises(TooManyError):
        check_values(b"[" * (2 * VALUES_LIMIT) + b'"')
    counts = count_values(b"[" * 10_000_000)
    assert next(counts) == SLICE_BYTES


def test_of_very_many_parts_the_first_are_kept() -> None:
    parts = [{"type": "text", "text": str(number)} for number in range(PARTS_LIMIT + 5)]
    found = parse({"content": list(parts)}).result["content"]
    assert found[:-1] == parts[:PARTS_LIMIT]
    note = f"[truncated: only the first {PARTS_LIMIT} of {len(parts)} parts are shown; ask for less]"
    assert found[-1] == {"type": "text", "text": note}


def test_of_very_many_parts_of_a_resource_the_first_are_kept() -> None:
    parts = [{"uri": f"x://{number}", "text": str(number)} for number in range(PARTS_LIMIT + 5)]
    found = parse({"contents": list(parts)}).result["contents"]
    assert found[:-1] == parts[:PARTS_LIMIT]
    assert found[-1]["text"].startswith("[truncated: only the first 1000 of 1005 parts")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("tools", "tools"),
        ("resources", "resources"),
        ("resourceTemplates", "resource templates"),
        ("prompts", "prompts"),
        ("messages", "messages"),
    ],
)
def test_a_page_with_too_many_entries_is_an_error(key: str, words: str) -> None:
    entries: list[Any] = [{"name": f"t{number}"} for number in range(ENTRIES_LIMIT + 1)]
    assert isinstance(parse({key: entries[:-1]}), JSONRPCResponse)
    assert f"2001 {words}, more than 2000 on a page" in parse({key: entries}).error.message
