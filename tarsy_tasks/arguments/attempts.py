"""What in a bare text shows that it was to be more than a text.

Owns the signs of a failed attempt at structure: cut-off JSON, a pair, a flag, a tag or a call that names a property.
Such a text must not be sent as the value of some property. It knows no schema but its names, and is linear in the text.
"""

import re
from collections.abc import Collection

from tarsy_tasks.arguments.shape import fold

__all__ = ["find_attempt", "has_model_token"]

_BROKEN_JSON = re.compile(
    r"""\{\s*(?:["'“‘«]|\}|\\["']|&(?:quot|\#)|[^\W\d][\w$.-]{0,80}\s*:\s|\Z)"""
    r"""|\[[\s\[]*(?:["'{]|-?[0-9.]+\s*(?:,|\Z)|\Z)"""
    r"""|"[^"]*(?:\Z|"\s*:)|(?i:%7B|%5B)%(?:22|27|7B)"""
)
_PAIR = re.compile(r"(?:^|[\n,;{])[ \t]*(?:[-*+][ \t]+)?[\"'`*]{0,2}([^\W\d][\w.-]*+)[\"'`*]{0,2}[ \t]*[:=：](?![=~/])")
_ARGUMENT = re.compile(r"[\n,;{(][ \t]*[\"'`*]{0,2}([^\W\d][\w.-]*+)[\"'`*]{0,2}[ \t]*[:=](?![=~/])")
_CALL = re.compile(r"\s*[\w.:]{1,80}\(")
_QUOTED_NAME = re.compile(r"[\"']([^\W\d][\w.-]*+)[\"']\s*+:")
_FIRST = re.compile(r"(?:--?|/|<)([^\W\d][\w.-]*+)[\s=:>]|([^\W\d][\w.-]*+)[ \t]*(?:[-:=]>|:=|==|[ \t]\S+\Z)")
_LABEL = re.compile(r"(?:input|arguments?|args|param(?:eter)?s)[ \t]*[:=](?![=~/])", re.IGNORECASE)
_MARKUP = re.compile(
    r"\s*(?:<(?:\||/?(?:antml:)?(?:function|invoke|tool|parameter|arg)[\w-]*[\s=>])|\[/?TOOL_)|\s*<[\w:]+ name=[\"']",
    re.IGNORECASE,
)
_FLAG = re.compile(r"--?[A-Za-z][\w-]*(?:[= ]|\Z)")
_PLACEHOLDER = re.compile(r"\.{3,}|…|undefined|<[^<>\n]{1,60}>")
_TRANSCRIPT = re.compile(r"(?:^|\n)(?:Observation|Action|Action Input|Final Answer):")


_TOKEN = re.compile(r"<\|\w{1,40}\|>|</?think(?:ing)?>|\[/?INST\]|<(?:end_of_turn|eos)>")
_FENCE_LINE = re.compile(r"(?:^|\n)[ \t]*(?:```|~~~)|```[ \t]*(?:\n|\Z)|:[ \t]*```")


def has_model_token(text: str) -> bool:
    """Whether markup is in it that only models write among themselves, such as `<|im_end|>` or `<think>`."""
    return ("<" in text or "[" in text) and (_TOKEN.search(text) is not None or _has_stop(text))


def _has_stop(text: str) -> bool:
    return text.find("</s>") >= 0 and text.find("<s>") < 0


def find_attempt(text: str, properties: Collection[str], reason: str, *, fences: bool = False) -> str | None:
    """The sign that `text` is an attempt at structure, in words for a model, or None.

    Args:
        reason: Why it is no JSON.
        fences: What looks like a fence belongs to the text.
    """
    if _BROKEN_JSON.match(text):
        return f"It begins as JSON, but is none: {reason}."
    if text.startswith("{") and (text.count("{") != text.count("}") or text.count('"') % 2):
        return "It begins with a brace and is cut off."
    if _LABEL.match(text):
        return "It begins with a label, but what follows is no object."
    if _MARKUP.match(text):
        return "They are the markup of a call, which cannot be read here."
    if has_model_token(text):
        return "They hold the markup of a model, such as `<|im_end|>` or `<think>`."
    if not fences and _FENCE_LINE.search(text):
        return "A code fence stands in it among other text, so what is meant cannot be told: write the value alone."
    if _FLAG.match(text):
        return "They are flags of a command line."
    if _PLACEHOLDER.fullmatch(text):
        return "They are a placeholder."
    if _TRANSCRIPT.search(text):
        return "It holds more than the arguments."
    names = {fold(name) for name in properties}
    patterns = [_PAIR, _QUOTED_NAME, *([_ARGUMENT] if _CALL.match(text) else [])]
    found = [match for pattern in patterns for match in pattern.finditer(text)]
    if first := _FIRST.match(text):
        found.append(first)
    for match in found:
        name = match[match.lastindex or 0]
        if fold(name) in names and _CALL.match(text):
            return (
                f"It is written as the call of a function (`{name[:40]}` names a property): write only its arguments."
            )
        if fold(name) in names:
            return f"`{name[:40]}` names a property, but the text cannot be read as pairs."
    return None
