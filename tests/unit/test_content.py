"""An MCP result becomes what an agent reads."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from tarsy_tasks import ErrorCode, Outcome, ToolResult
from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.masker import Masker
from tarsy_tasks.worker.calls.content import ATTACHMENTS_LIMIT_BYTES, DEPTH_LIMIT, TEXT_LIMIT, build_result
from tarsy_tasks.worker.maskers import build_masker

LIMIT = TEXT_LIMIT + 128 * 1024
"""More characters of one text are never searched."""


@dataclass(frozen=True)
class Counting(Masker):
    """Counts what it is given."""

    lengths: list[int] = field(default_factory=list[int])

    def mask(self, text: str) -> str:
        self.lengths.append(len(text))
        return super().mask(text)

    def mask_json(self, value: Any) -> Any:
        self.lengths.append(len(json.dumps(value)))
        return super().mask_json(value)


def build(*content: object, masker: Masker | None = None, **fields: object) -> ToolResult:
    result = CallToolResult(content=list(content), **fields)
    return build_result(result, masker or build_masker(), call_id="c", name="s.t", attempts=1, duration_s=0.1)


def text(value: str) -> TextContent:
    return TextContent(type="text", text=value)


def test_text_parts_are_joined_by_lines() -> None:
    assert build(text("one"), text("two")).content == "one\ntwo"


@pytest.mark.parametrize(
    ("value", "structured"),
    [
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        (" [1] ", [1]),
        ('{"a": NaN}', None),
        ("[" * 100_000, None),
        ("{not json}", None),
        ("7", None),
        ('"text"', None),
    ],
)
def test_a_text_that_is_json_is_structured_too(value: str, structured: object) -> None:
    result = build(text(value))
    assert result.structured == structured
    assert result.content == value


@pytest.mark.parametrize("depth", [DEPTH_LIMIT + 1, 300, 900, 20_000])
def test_of_a_value_that_is_too_deep_the_text_is_left(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    assert build(text(deep)).content == deep
    assert build(text(deep)).structured is None
    value: dict[str, Any] = {}
    for _ in range(min(depth, 900)):
        value = {"a": value}
    result = build(text("see"), structured_content=value)
    assert result.structured is None
    assert result.content.startswith("see\n[left out: a structured value")


def test_a_value_as_deep_as_may_be_is_kept() -> None:
    deep = "[" * DEPTH_LIMIT + "]" * DEPTH_LIMIT
    assert build(text(deep)).structured == json.loads(deep)


def test_structured_content_replaces_a_missing_text() -> None:
    result = build(structured_content={"a": float("inf"), "b": [1.5]})
    assert result.structured == {"a": "inf", "b": [1.5]}
    assert json.loads(result.content) == result.structured


def test_what_is_not_text_is_named_in_the_text_and_kept() -> None:
    data = base64.b64encode(b"x" * 12_345).decode()
    result = build(
        text("look:"),
        ImageContent(type="image", data=data, mime_type="image/png"),
        AudioContent(type="audio", data="AAAA", mime_type="audio/wav"),
        ResourceLink(type="resource_link", name="log", uri="file:///var/log/x", mime_type="text/plain"),
        ResourceLink(name="log", title="The log", description="pwd=hunter2x of today", uri="mem://log"),
        EmbeddedResource(type="resource", resource=BlobResourceContents(uri="mem://b", blob="AAAA")),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="mem://t", text="inside")),
    )
    assert result.content.splitlines() == [
        "look:",
        "[image/png, 12.3 kB]",
        "[audio/wav, 3 B]",
        "[text/plain, file:///var/log/x, log]",
        f"[resource_link, mem://log, The log: pwd={MASK} of today]",
        "[resource, 3 B, mem://b]",
        "inside",
    ]
    links = ["resource_link", "resource_link"]
    assert [part.type for part in result.attachments] == ["image", "audio", *links, "resource", "resource"]
    assert result.content_types == ("text", "image", "audio", "resource_link", "resource")
    assert result.attachments[0].data == data
    assert result.attachments[5].text == "inside"
    link = result.attachments[3]
    assert (link.name, link.title, link.description) == ("log", "The log", f"pwd={MASK} of today")


def test_a_note_is_masked_and_bounded() -> None:
    result = CallToolResult(content=[text("7")])
    facts: Any = {"call_id": "c", "name": "s.t", "attempts": 1, "duration_s": 0.1}
    built = build_result(result, build_masker(), notes=["INVALID_RESULT: password: hunter2x", "x" * 9000], **facts)
    assert built.notes[0] == f"INVALID_RESULT: password: {MASK}"
    assert len(built.notes[1]) == 1000


@pytest.mark.parametrize("wrap", [lambda said: {"content": said}, lambda said: {"result": said}, json.loads])
def test_what_is_said_twice_is_masked_once(wrap: Callable[[str], Any]) -> None:
    said = json.dumps({"rows": [{"name": "ä", "password": f"hunter-{number}"} for number in range(50)]}, indent=1)
    masker = Counting()
    result = build(text(said), masker=masker, structured_content=wrap(said))
    assert result.structured == wrap(result.content)
    assert (result.content.count(MASK), "hunter" in result.model_dump_json()) == (50, False)
    assert sum(masker.lengths) == len(said)


@pytest.mark.parametrize("said", [{"password": "hunter2hunter2"}, {"content": "no more", "token": "hunter2hunter2"}])
def test_what_differs_from_the_text_is_masked_itself(said: dict[str, str]) -> None:
    result = build(text("hunter2hunter2"), structured_content=said)
    assert result.structured == {key: value.replace("hunter2hunter2", MASK) for key, value in said.items()}


def test_a_failure_is_a_tool_error() -> None:
    result = build(text("no"), is_error=True)
    assert (result.outcome, result.error_code, result.content) == (Outcome.TOOL_ERROR, ErrorCode.TOOL_ERROR, "no")
    assert build(is_error=True).content


def test_a_long_text_is_cut_at_a_line_and_says_so() -> None:
    line = "a" * 99 + "\n"
    result = build(text(line * (2 * TEXT_LIMIT // 100)))
    body, _, note = result.content.rstrip().rpartition("\n")
    assert len(body) <= TEXT_LIMIT
    assert set(body.split("\n")) <= {"a" * 99, ""}
    assert note.startswith("[truncated: ")


def test_a_secret_on_the_cut_is_masked_first() -> None:
    result = build(text("x" * (TEXT_LIMIT - 14) + " password: hunter2hunter2hunter2" + "y" * 100_000))
    assert "hunter" not in result.content


def test_attachments_above_the_limit_keep_their_name_only() -> None:
    data = base64.b64encode(b"x" * ATTACHMENTS_LIMIT_BYTES).decode()
    small = ImageContent(type="image", data="AAAA", mime_type="image/png")
    result = build(ImageContent(type="image", data=data, mime_type="image/png"), small)
    assert (result.attachments[0].data, result.attachments[0].size_bytes) == (None, ATTACHMENTS_LIMIT_BYTES)
    assert result.attachments[1].data == "AAAA"


def test_secrets_are_masked_in_every_part() -> None:
    result = build(
        text("password: hunter2hunter2"),
        EmbeddedResource(
            type="resource", resource=TextResourceContents(uri="x://y?api_key=hunter2x", text="pwd=hunter2x")
        ),
        structured_content={"password": "hunter2", "list": ["apikey=hunter2x"]},
    )
    assert "hunter" not in result.model_dump_json()


def test_a_result_shows_nothing_of_itself_in_logs() -> None:
    assert repr(build(text("private"))) == "<s.t: ok, 7 characters, 0.1 s>"


@pytest.mark.parametrize(
    "whole",
    [
        "user: bob, password: hunter2hunter2",
        "the token is ghp_abcdefghijklmnopqrstuvwxyz012345",
        "db: postgres://app:hunter2hunter2@db/orders",
        "Authorization: Bearer hunter2hunter2",
    ],
)
def test_a_secret_that_is_split_over_parts_is_masked(whole: str) -> None:
    for cut in range(1, len(whole)):
        result = build(text(whole[:cut]), text(whole[cut:]))
        assert "hunter2hunter2" not in result.content.replace("\n", "")
        assert "abcdefghijklmnop" not in result.content.replace("\n", "")
        assert MASK in result.content


def test_a_secret_that_is_split_letter_by_letter_is_masked() -> None:
    result = build(*map(text, "password: hunter2hunter2"), text(" and more"))
    assert "hunter" not in result.content.replace("\n", "")
    assert "more" in result.content


@pytest.mark.parametrize("length", [600, 100_000])
def test_all_of_a_long_token_that_is_split_is_masked(length: int) -> None:
    result = build(text("the token is ghp_abcdefg"), text("hijklmno" * (length // 8) + " and more"))
    assert "ijklm" not in result.content
    assert "and more" in result.content


@pytest.mark.parametrize(
    "parts", [["password policy", "long"], ['{"a": 1}', '{"b": 2}'], ["no password", "token: none"], ["", "a", ""]]
)
def test_parts_without_a_secret_stay_as_they_are(parts: list[str]) -> None:
    assert build(*map(text, parts)).content == "\n".join(parts)


def test_an_attachment_in_base64_is_masked_if_it_is_a_text() -> None:
    blob = base64.b64encode(b"user: bob\npassword: hunter2hunter2\n").decode()
    result = build(EmbeddedResource(type="resource", resource=BlobResourceContents(uri="mem://b", blob=blob)))
    assert base64.b64decode(result.attachments[0].data or "") == f"user: bob\npassword: {MASK}\n".encode()


def test_of_a_result_of_20_mb_no_more_is_searched_than_is_kept() -> None:
    masker = Counting()
    line = f"{'x' * 990} password: hunter2hunter2\n"
    long = line * (20_000_000 // len(line))
    resource = TextResourceContents(uri="mem://t", text=long)
    result = build(text(long), EmbeddedResource(type="resource", resource=resource), masker=masker)
    assert "hunter" not in result.model_dump_json()
    assert result.content.count(MASK) > 1000
    assert max(masker.lengths) <= LIMIT


def test_structured_content_is_masked_whole() -> None:
    rows = [{"name": f"row {n}", "text": "x" * 1800, "password": "hunter2hunter2"} for n in range(500)]
    result = build(structured_content={"rows": rows})
    assert isinstance(result.structured, dict)
    assert "hunter" not in json.dumps(result.structured)


def test_the_work_for_many_parts_is_linear() -> None:
    def work(parts: int) -> int:
        masker = Counting()
        build(*[text("password: hun"), text("ter2hunter2")] * (parts // 2), masker=masker)
        return sum(masker.lengths)

    assert work(400) <= 6 * work(100)


def test_annotations_of_attachments_are_passed_on_masked() -> None:
    hints = {"audience": ["user"], "priority": 0.3, "lastModified": "password: hunter2hunter2", "other": 1}
    image = ImageContent.model_validate({"type": "image", "data": "", "mimeType": "image/png", "annotations": hints})
    link = ResourceLink(type="resource_link", uri="file:///a", name="a")
    first, second = build(image, link).attachments
    assert (first.annotations["audience"], first.annotations["priority"]) == (["user"], 0.3)
    assert first.annotations["lastModified"] == f"password: {MASK}"
    assert "other" not in first.annotations
    assert second.annotations == {}
