"""What models wrap around arguments: fences, tags, labels, quotes.

Owns how a wrapping is recognized and taken off. It reads nothing of what is inside and knows no schema but its names.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Unwrapped", "unwrap"]

_SPACE = " \t\r\n\f\v\ufeff\u200b\u00a0"
_DATA_LANGUAGES = {"", "json", "json5", "jsonc", "javascript", "js", "yaml", "yml"}
_MOST_LAYERS = 6
_LABEL_WORDS = (
    r"(?:action|tool|function|call)[ _-]?(?:input|arguments?|args|parameters|params|call)"
    r"|arguments?|args|parameters|params|inputs?|json|action|output"
)
_LABEL = re.compile(
    rf"[ \t]*(?:\*\*|`)?({_LABEL_WORDS})(?:\*\*|`)?[ \t]*[:=][ \t]*(?:\*\*)?[ \t]*(?:\r?\n)?", re.IGNORECASE
)
_BARE_LABEL = re.compile(r"(json|JSON)\s+(?=[{\[])")
_SURE_LABEL = re.compile(r"(?:action|tool) input\Z", re.IGNORECASE)
_PROSE_LABEL = re.compile(r"[^\W\d][^\n{}\[\]\"`=]{0,100}:[ \t]*\r?\n?[ \t]*(?=[{`])")
_TAG = re.compile(
    r"<(tool_call|tool_input|tool_args|action_input|arguments?|args|parameters|params|input|json|function_call)>",
    re.IGNORECASE,
)
_FENCE_INFO = re.compile(r"(```+|~~~+)[ \t]*([\w+.-]*)[ \t]*(?:\r?\n|(?=[ {\[]))")


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """What was inside.

    Attributes:
        repairs: A word for each wrapping that came off.
        prose: Words that are no known label stood before or after: the object may be part of a text.
        language: The language of the outermost fence, "" when it named none; None without a fence.
    """

    text: str
    repairs: tuple[str, ...] = ()
    prose: bool = False
    language: str | None = None

    @property
    def is_code(self) -> bool:
        """It was a fence of a language that is no way to write arguments, such as SQL or Python."""
        return self.language is not None and self.language not in _DATA_LANGUAGES


def unwrap(text: str, properties: Collection[str]) -> Unwrapped:
    """Takes off every layer around the arguments.

    Args:
        text: What the model wrote.
        properties: Names that are no labels, because the tool has a property of that name.
    """
    repairs: dict[str, None] = {}
    prose = False
    language: str | None = None
    text = _stripped(text)
    for _ in range(_MOST_LAYERS):
        if fence := _fenced(text):
            text, info = fence
            language = info if language is None else language
            repairs["code_fence"] = None
            if language not in _DATA_LANGUAGES:
                break
        elif (inner := _tagged(text)) is not None:
            text = _stripped(inner)
            repairs["tag"] = None
        elif (inner := _quoted(text)) is not None:
            text = _stripped(inner)
            repairs["quoted"] = None
        elif (inner := _labelled(text, properties)) is not None:
            text = _stripped(inner)
            repairs["label"] = None
        elif not prose and (inner := _in_prose(text, properties)) is not None:
            text = _stripped(inner)
            prose = True
            repairs["label"] = None
        else:
            break
    return Unwrapped(text, tuple(repairs), prose, language)


def _stripped(text: str) -> str:
    """Without space around it; the indentation of a first line stays where others depend on it."""
    text = text.rstrip(_SPACE)
    bare = text.lstrip(_SPACE)
    if "\n" not in bare:
        return bare
    lead = text[: len(text) - len(bare)]
    return lead[lead.rfind("\n") + 1 :].strip("\ufeff\u200b") + bare


def _fenced(text: str) -> tuple[str, str] | None:
    """The inside and the language of a text that is one fence as a whole."""
    bare = text.lstrip(_SPACE)
    if not bare.startswith(("```", "~~~")):
        return None
    info = _FENCE_INFO.match(bare)
    if info is None:
        return None
    inner = bare[info.end() :].removesuffix(info[1])
    if info[1] in inner:
        return None
    return _stripped(inner), info[2].lower()


def _tagged(text: str) -> str | None:
    tag = _TAG.match(text)
    if tag is None:
        return None
    return text[tag.end() :].removesuffix(f"</{tag[1]}>")


def _quoted(text: str) -> str | None:
    """Objects in backticks, in the single quotes of a shell, or with every quote escaped."""
    if text[:2] in ("`{", "'{") and text.endswith("}" + text[0]):
        return text[1:-1]
    if re.match(r'\{\s*(?:\\n\s*)*\\"', text):
        try:
            inner = json.loads(f'"{text}"', strict=False)
        except ValueError:
            return None
        return inner if isinstance(inner, str) else None
    return None


def _labelled(text: str, properties: Collection[str]) -> str | None:
    if text.startswith(("Thought:", "Action:", "Reasoning:")) and text.count("\nAction Input:") == 1:
        return text.partition("\nAction Input:")[2]
    label = _LABEL.match(text) or _BARE_LABEL.match(text)
    if label is None or label[1] in properties:
        return None
    inner = text[label.end() :].lstrip(_SPACE)
    return inner if _SURE_LABEL.match(label[1]) or inner.startswith(("{", "```", "`{", "<")) else None


def _in_prose(text: str, properties: Collection[str]) -> str | None:
    """The one fence of data in a text, or the object after a line that ends with a colon."""
    if (start := text.find("```")) >= 0 and text.count("```") == 2:
        info = _FENCE_INFO.match(text, start)
        end = text.rfind("```")
        if info and info[2].lower() in _DATA_LANGUAGES and text[info.end() :].lstrip(_SPACE).startswith("{"):
            return text[start : end + 3]
        return None
    if (label := _PROSE_LABEL.match(text)) and text[: label.end()].rstrip(_SPACE + ":") not in properties:
        return text[label.end() :]
    return None
