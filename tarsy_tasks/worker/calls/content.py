"""From an MCP result to what an agent reads: text, structured value, attachments; capped and masked.

Owns what is kept of a result and how the rest is described. It may run in any thread: `tool_call` keeps large
results away from the event loop of all calls.
"""

import base64
import binascii
import json
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Unpack, cast

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    ReadResourceResult,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic import JsonValue

from tarsy_tasks.errors import CallError
from tarsy_tasks.models import Attachment, ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.resources import BLOB, TEXT
from tarsy_tasks.worker.calls.failures import CallFacts
from tarsy_tasks.worker.calls.split_secrets import are_one_document, mask_borders, mask_split
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definition_fields import mask_object

__all__ = ["build_contents", "build_messages", "build_result", "mask_result"]

TEXT_LIMIT = 1024 * 1024
"""Characters of text that a result keeps; what is cut off is named at its end."""
STRUCTURED_LIMIT = TEXT_LIMIT
"""Characters of a structured value that a result keeps, as JSON; a longer one is left out, and named in the text."""
DEPTH_LIMIT = 100
"""Levels of a structured value that a result keeps; of a deeper one only the text is kept."""
ATTACHMENTS_LIMIT_BYTES = 4 * 1024 * 1024
"""Bytes of attachments that a result carries; larger ones keep their name and size."""
_LONGEST_LINE = 64 * 1024
"""A text is cut at the end of a line, unless that is longer."""
_NOTE_CHARS = 1000
_DESCRIPTION_CHARS = 16 * 1024
"""Of the name, the title and the description of a link, each."""
_TYPE_OF = attrgetter("type")
_encode = json.JSONEncoder(ensure_ascii=False).encode
_HINTS = {"audience", "priority", "last_modified"}
_WITHHELD = "[left out: this content contains a secret]"
_NO_STRUCTURED = (
    f"\n[left out: a structured value of more than {STRUCTURED_LIMIT} characters, or {DEPTH_LIMIT} levels; "
    "ask for less]"
)
_NOTICE = "[left out: part of a document that contains secrets]"


def build_result(
    result: CallToolResult,
    masker: Masker,
    *,
    notes: Iterable[str] = (),
    limit: int = TEXT_LIMIT,
    **facts: Unpack[CallFacts],
) -> ToolResult:
    """The answer to a call that the MCP server answered, error or not; `limit` are the characters of text."""
    blocks = result.content
    texts = [*map(_text_of, blocks)]
    content = _mask_document(texts, masker, limit)
    parts = mask_borders(texts, masker) if content is None else [_NOTICE] * len(texts)
    if content is None:
        content = _mask_and_cut("\n".join(parts), masker, limit)
    attachments = [
        _with_annotations(_attachment(block, part), block)
        for block, part in zip(blocks, parts, strict=True)
        if not isinstance(block, TextContent)
    ]
    structured = _structured(result, content, masker)
    if structured is None and result.structured_content is not None:
        content += _NO_STRUCTURED
    elif not content and structured is not None:
        content = _encode(structured)
    failed = bool(result.is_error)
    return ToolResult(
        content=content or ("The tool failed without saying why." if failed else ""),
        structured=structured,
        attachments=tuple(_masked(each, masker, limit) for each in _within_limit(attachments)),
        outcome=Outcome.TOOL_ERROR if failed else Outcome.OK,
        error_code=ErrorCode.TOOL_ERROR if failed else None,
        content_types=tuple(dict.fromkeys(map(_TYPE_OF, blocks))),
        notes=_mask_notes(notes, masker),
        **facts,
    )


def build_contents(result: ReadResourceResult, masker: Masker, **facts: Unpack[CallFacts]) -> ToolResult:
    """The answer to a resource that was read. The text of its only part is not repeated in the attachments."""
    blocks = [EmbeddedResource(type="resource", resource=each) for each in result.contents]
    kinds = [BLOB if isinstance(each, BlobResourceContents) else TEXT for each in result.contents]
    if kinds != [TEXT]:
        built = build_result(CallToolResult.model_construct(content=[*blocks], is_error=False), masker, **facts)
        return built.model_copy(update={"content_types": tuple(dict.fromkeys(kinds))})
    return ToolResult(
        content=_mask_and_cut(_text_of(blocks[0]), masker, TEXT_LIMIT),
        attachments=(_masked(_attachment(blocks[0]), masker, TEXT_LIMIT),),
        content_types=(TEXT,),
        **facts,
    )


def build_messages(result: GetPromptResult, masker: Masker, **facts: Unpack[CallFacts]) -> ToolResult:
    """The answer to a prompt.

    Raises:
        CallError: Its messages are longer than a structured value may be.
    """
    messages: list[dict[str, Any]] = []
    for each in result.messages:
        built = build_result(CallToolResult.model_construct(content=[each.content], is_error=False), masker, **facts)
        attachments = [attachment.model_dump(mode="json") for attachment in built.attachments]
        messages.append({"role": each.role, "content": built.content, "attachments": attachments})
    description = masker.mask_start(result.description or "", _DESCRIPTION_CHARS)
    structured = _bounded({"description": description, "messages": messages})
    if structured is None:
        raise CallError(
            ErrorCode.RESULT_TOO_LARGE,
            f"The prompt has more than {STRUCTURED_LIMIT} characters, so it was dropped. Ask for less.",
        )
    text = "\n".join(f"{each['role']}: {each['content']}" for each in messages)
    kinds = tuple(dict.fromkeys(each.content.type for each in result.messages))
    return ToolResult(content=text, structured=structured, content_types=kinds, **facts)


def mask_result(
    found: ToolResult, masker: Masker, *, limit: int = TEXT_LIMIT, **facts: Unpack[CallFacts]
) -> ToolResult:
    """A result that a user's interceptor made, within the limits of all results."""
    structured = _mask_structured(_bounded(found.structured), masker)
    is_left_out = structured is None and found.structured is not None
    code = found.error_code
    return ToolResult(
        content=_mask_and_cut(found.content, masker, limit) + (_NO_STRUCTURED if is_left_out else ""),
        structured=structured,
        attachments=tuple(_masked(each, masker, limit) for each in _within_limit(found.attachments)),
        outcome=found.outcome,
        error_code=code if code is None or isinstance(code, ErrorCode) else masker.mask(code),
        content_types=tuple(map(masker.mask, found.content_types)),
        notes=_mask_notes(found.notes, masker),
        cached=found.cached,
        **facts,
    )


def _mask_notes(notes: Iterable[str], masker: Masker) -> tuple[str, ...]:
    return tuple([masker.mask_start(note, _NOTE_CHARS) for note in notes])


def _mask_document(texts: Sequence[str], masker: Masker, limit: int) -> str | None:
    """The parts as the one text that they are pieces of; None if they are none, or each shows its secrets itself."""
    if not are_one_document(texts, limit):
        return None
    masked = _mask_and_cut("".join(texts), masker, limit)
    return None if masked == "".join(_mask_and_cut(text, masker, limit) for text in texts) else masked


def _mask_and_cut(text: str, masker: Masker, limit: int) -> str:
    length = len(text)
    if length <= limit:
        return masker.mask(text)
    text = masker.mask_start(text, limit)
    line_end = text.rfind("\n", len(text) - _LONGEST_LINE)
    text = text[: line_end + 1] if line_end >= 0 else text
    shown = f"only the first {len(text)} of {length} characters are shown"
    return f"{text}\n[truncated: {shown}; ask for less, or for a part]"


def _structured(result: CallToolResult, content: str, masker: Masker) -> JsonValue:
    """The structured content, or the value of a text that is a JSON object or array; masked."""
    only = result.content[0] if len(result.content) == 1 else None
    text = only.text if isinstance(only, TextContent) and len(only.text) <= TEXT_LIMIT else ""
    if result.structured_content is None:
        return _value_of(content) if text else None
    value = _bounded(result.structured_content)
    if text and value is not None and mask_split(value, masker) is value:
        # Most servers say the same twice, and masking is what costs most.
        if value in ({"content": text}, {"result": text}):
            return dict.fromkeys(cast("dict[str, JsonValue]", value), content)
        if _value_of(text) == value and (masked := _value_of(content)) is not None:
            return masked
    return _mask_structured(value, masker)


def _value_of(text: str) -> JsonValue:
    """The value of a text that is a JSON object or array; None if it is none, or too deep."""
    text = text.strip()
    if text[:1] not in ("{", "["):
        return None
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    return None if _is_too_deep(value) else value


def _bounded(found: Any) -> JsonValue:
    """A structured value, None if it is too long or too deep."""
    if _is_too_deep(found):
        return None
    value = _json_safe(found)
    return None if len(_encode(value)) > STRUCTURED_LIMIT else value


def _mask_structured(value: JsonValue, masker: Masker) -> JsonValue:
    """The value masked, even where one secret is cut into several strings."""
    return value if value is None else masker.mask_json(mask_split(value, masker))


def _is_too_deep(value: Any) -> bool:
    level: list[Any] = [value]
    for _ in range(DEPTH_LIMIT):
        below: list[Any] = []
        for each in level:
            if each.__class__ is dict:
                below.extend(each.values())
            elif each.__class__ is list:
                below.extend(each)
        if not below:
            return False
        level = below
    return any(isinstance(each, dict | list) for each in level)


def _json_safe(value: Any) -> JsonValue:
    """Structured content comes from a JSON parser that lets NaN and infinities pass; JSON itself has none."""
    if value.__class__ is str:
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _json_safe(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_json_safe(item) for item in cast("list[Any]", value)]
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _text_of(block: ContentBlock) -> str:
    """The text of a part; of one that has none a line that stands for it, such as `[image/png, 12 kB]`."""
    if isinstance(block, TextContent):
        return block.text
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, TextResourceContents):
        return block.resource.text
    attachment = _attachment(block)
    words = [attachment.mime_type or attachment.type]
    if attachment.size_bytes is not None:
        words.append(_readable_size(attachment.size_bytes))
    if attachment.uri is not None:
        words.append(attachment.uri)
    if label := attachment.title or attachment.name:
        words.append(label)
    described = f": {attachment.description}" if attachment.description else ""
    return f"[{', '.join(words)}{described}]"


def _with_annotations(attachment: Attachment, block: ContentBlock) -> Attachment:
    if block.annotations is None:
        return attachment
    hints = block.annotations.model_dump(by_alias=True, exclude_none=True, include=_HINTS)
    return attachment.model_copy(update={"annotations": hints})


def _attachment(block: ContentBlock, text: str = "") -> Attachment:
    """What is kept of a part beside its text, which is given if it has one."""
    if isinstance(block, ImageContent | AudioContent):
        return Attachment(
            type=block.type, mime_type=block.mime_type, size_bytes=_decoded_size(block.data), data=block.data
        )
    if isinstance(block, ResourceLink):
        return Attachment(
            type=block.type,
            mime_type=block.mime_type,
            uri=str(block.uri),
            size_bytes=block.size,
            name=block.name,
            title=block.title,
            description=block.description,
        )
    if isinstance(block, EmbeddedResource):
        resource = block.resource
        if isinstance(resource, BlobResourceContents):
            return Attachment(
                type=block.type,
                mime_type=resource.mime_type,
                uri=str(resource.uri),
                size_bytes=_decoded_size(resource.blob),
                data=resource.blob,
            )
        return Attachment(
            type=block.type,
            mime_type=resource.mime_type,
            uri=str(resource.uri),
            size_bytes=_size_of(resource.text),
            text=text,
        )
    return Attachment(type=block.type)


def _masked(attachment: Attachment, masker: Masker, limit: int) -> Attachment:
    """What of an attachment may leave the worker: its words and text masked, and its data if that is text, too."""
    data = attachment.data and (masker.mask_base64(attachment.data) or None)
    return attachment.model_copy(
        update={
            "type": masker.mask(attachment.type),
            "mime_type": attachment.mime_type and masker.mask(attachment.mime_type),
            "uri": attachment.uri and masker.mask(attachment.uri),
            "text": _WITHHELD if attachment.data and not data else _masked_text(attachment.text, masker, limit),
            "data": data,
            "annotations": mask_object(attachment.annotations, masker) if attachment.annotations else {},
            **{field: _described(getattr(attachment, field), masker) for field in ("name", "title", "description")},
        }
    )


def _described(text: str | None, masker: Masker) -> str | None:
    return text and masker.mask_start(text, _DESCRIPTION_CHARS)


def _masked_text(text: str | None, masker: Masker, limit: int) -> str | None:
    return text and _mask_and_cut(text, masker, limit)


def _within_limit(attachments: Iterable[Attachment]) -> Iterable[Attachment]:
    left = ATTACHMENTS_LIMIT_BYTES
    for attachment in attachments:
        carried = len(attachment.data or "") + len(attachment.text or "")
        if carried > left:
            yield attachment.model_copy(update={"data": None, "text": None})
        else:
            left -= carried
            yield attachment


def _size_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _decoded_size(data: str) -> int:
    try:
        return len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return len(data)


def _readable_size(size_bytes: int) -> str:
    for unit, factor in (("MB", 1_000_000), ("kB", 1_000)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes} B"
