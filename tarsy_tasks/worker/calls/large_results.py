"""Cutting a result that is too long for a model, so that the whole can be read in parts.

Owns what is left of it and the sentence about the rest. The result is masked already; where the whole is kept, and when
Redis refuses it, is `broker.large_results`. It runs in a thread.
"""

import json
from functools import partial

from tarsy_tasks.broker.large_results import MOST_CHARS, READ_RESULT, LargeWrite, is_handle, pack
from tarsy_tasks.models import LargeResult, ToolResult

__all__ = ["cut_result"]

_SENTENCES_CHARS = 1024
"""For the sentences about the rest."""
_HEAD = 0.75
"""The share of the beginning: a text says there what it is."""
_LINE = 0.25
"""A text is cut between lines, unless that loses more than this share of its beginning or end."""
_encode = json.JSONEncoder(ensure_ascii=False).encode


def cut_result(
    result: ToolResult, most_chars: int, owner: str, handle: str, quota_bytes: int
) -> tuple[ToolResult, LargeWrite | None]:
    """The result with at most so many characters of text and of its structured value, and the whole of it.

    Args:
        owner: To whom it belongs (`broker.keys.result_owner`).
        handle: By which it can be read.
        quota_bytes: So much is kept for the owner.

    Returns:
        The result as it is, and None, if it is not too long. Otherwise it is cut, and without a structured value that
        is too long; None if the whole is larger than the quota.
    """
    structured = "" if result.structured is None else _encode(result.structured)
    if len(structured) <= most_chars:
        structured = ""
    if len(result.content) <= most_chars and not structured:
        return result, None
    cut = partial(_cut, result, most_chars, structured)
    if not quota_bytes:
        return cut("", "nothing is kept here"), None
    if not is_handle(handle):
        return cut(
            "",
            "the id of its task cannot be a handle, which has only letters, digits, - and _, and at most 64 characters",
        ), None
    if max(len(result.content), len(structured)) > MOST_CHARS:
        return cut("", "it is too long to be kept"), None
    whole = pack(result.content, structured)
    if len(whole) > quota_bytes:
        return cut("", f"it is larger than what is kept for an agent ({quota_bytes} bytes)"), None
    kept = cut(handle, "", len(whole))
    whole_bytes = sum(len(each.encode("utf-8", "replace")) for each in (result.content, structured))
    return kept, LargeWrite(owner, handle, whole, quota_bytes, kept, cut("", "Redis did not take it"), whole_bytes)


def _cut(
    result: ToolResult, most_chars: int, structured: str, handle: str, why: str, kept_bytes: int = 0
) -> ToolResult:
    """The result with its beginning and end, and how to read the rest; or why that cannot be read."""
    text = result.content
    shown, head, rest = text, "", ""
    sentences: list[str] = []
    if len(text) > most_chars:
        head, tail = _ends_of(text, most_chars - _SENTENCES_CHARS)
        sentences.append(
            f"This result has {len(text)} characters. Below are its first {len(head)} and its last {len(tail)}."
        )
        rest = f"\n[{len(text) - len(head) - len(tail)} characters are left out here]\n"
        shown = f"{head}{rest}{tail}"
    if structured:
        sentences.append(f"Its structured value ({len(structured)} characters as JSON) is left out.")
    if handle:
        asked: dict[str, object] = {"handle": handle}
        asked |= {"offset": len(head)} if rest else {"part": "structured"}
        sentences.append(
            f"To read on, call the tool `{READ_RESULT}` with {_encode(asked)}; with `contains` it searches. If you do "
            "not have this tool, ask for less."
        )
    else:
        sentences.append(f"The rest cannot be read, because {why}. Ask for less, or for a part.")
    sizes = {"content_chars": len(text), "structured_chars": len(structured), "kept_bytes": kept_bytes}
    large = LargeResult(handle=handle, **sizes)
    # Their texts are part of the content.
    attachments = [each.model_copy(update={"text": None}) if rest else each for each in result.attachments]
    return result.model_copy(
        update={
            "content": f"[{' '.join(sentences)}]\n{shown}",
            "structured": None if structured else result.structured,
            "attachments": tuple(attachments),
            "large": large,
        }
    )


def _ends_of(text: str, most_chars: int) -> tuple[str, str]:
    """The beginning and the end of a text, between lines if they are not too long."""
    first = int(most_chars * _HEAD)
    line_end = text.rfind("\n", int(first * (1 - _LINE)), first)
    if line_end >= 0:
        first = line_end + 1
    last = len(text) - int(most_chars * (1 - _HEAD))
    line_end = text.find("\n", last, last + int((len(text) - last) * _LINE))
    if line_end >= 0:
        last = line_end + 1
    return text[:first], text[last:]
