"""Signs that a plain text is a failed attempt at structured arguments.

Owns these signs: cut-off JSON, a pair, a flag, a tag or a call that names a property. Such a text must not be sent as
the value of a property. It knows only the names of the schema, and is linear in the text.
"""

import re
from collections.abc import Callable, Collection

from tarsy_tasks.arguments.shape import fold

__all__ = ["find_attempt", "has_model_token", "is_cut_off"]

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
    """Whether a text contains markup of models, such as `<|im_end|>` or `<think>`."""
    return ("<" in text or "[" in text) and (_TOKEN.search(text) is not None or ("</s>" in text and "<s>" not in text))


def is_cut_off(reason: str) -> bool:
    """Whether a text is not JSON because its end is missing."""
    return any(sign in reason for sign in ("text ends before", "no closing quote", "is not closed"))


_SIGNS: tuple[tuple[Callable[[str], object], str], ...] = (
    (_LABEL.match, "The text begins with a label, but no JSON object follows."),
    (_MARKUP.match, "The text is the markup of a tool call: write only the arguments."),
    (has_model_token, "The text contains model markup such as `<|im_end|>` or `<think>`."),
    (
        _FENCE_LINE.search,
        "The text mixes a code fence with other text, so it is unclear which part is meant: write only the value.",
    ),
    (_FLAG.match, "The text consists of command-line flags."),
    (_PLACEHOLDER.fullmatch, "The text is a placeholder."),
    (_TRANSCRIPT.search, "The text contains more than the arguments."),
)


def find_attempt(text: str, properties: Collection[str], reason: str, *, fences: bool = False) -> str | None:
    """Why `text` is a failed attempt at structure, in words for a model; None when it is not. `reason`: why it is not
    JSON; `fences`: a code fence in it is part of the value."""
    if _BROKEN_JSON.match(text):
        return f"{'Incomplete' if is_cut_off(reason) else 'Invalid'} JSON: {reason}."
    if text.startswith("{") and (text.count("{") != text.count("}") or text.count('"') % 2):
        return "Incomplete JSON: a brace or a quote is not closed."
    for is_sign, why in _SIGNS:
        if is_sign(text) and not (fences and is_sign == _FENCE_LINE.search):
            return why
    names = {fold(name) for name in properties}
    patterns = [_PAIR, _QUOTED_NAME, *([_ARGUMENT] if _CALL.match(text) else [])]
    found = [match for pattern in patterns for match in pattern.finditer(text)]
    if first := _FIRST.match(text):
        found.append(first)
    for match in found:
        name = match[match.lastindex or 0]
        if fold(name) in names:
            if _CALL.match(text):
                return f"The text is a function call (`{name[:40]}` is a property): write only the arguments."
            return f"`{name[:40]}` is a property, but the text cannot be read as `key: value` pairs."
    return None
