"""Wrappings around arguments: fences, tags, labels, quotes.

Owns how a wrapping is recognized and removed. It does not read the arguments, and knows only the names of the schema.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from tarsy_tasks.arguments.values import SPACE

__all__ = ["Unwrapped", "strip_model_tokens", "strip_sure_label", "unwrap"]

_DATA_LANGUAGES = {"", "json", "json5", "jsonc", "javascript", "js", "yaml", "yml"}
_MAX_LAYERS = 6
_LABEL_WORDS = (
    r"(?:action|tool|function|call)[ _-]?(?:input|arguments?|args|parameters|params|call)"
    r"|arguments?|args|parameters|params|inputs?|json|action"
)
_LABEL = re.compile(
    rf"[ \t]*(?:\*\*|`)?({_LABEL_WORDS})(?:\*\*|`)?[ \t]*[:=][ \t]*(?:\*\*)?[ \t]*(?:\r?\n)?", re.IGNORECASE
)
_BARE_LABEL = re.compile(r"(json|JSON)\s+(?=[{\[])")
_SURE_LABEL = re.compile(r"(?:action|tool) input\Z", re.IGNORECASE)
# A sentence before an object must announce arguments: `Do not use this:`, `Error:` and `Example:` do not.
_PROSE_LABEL = re.compile(
    r"(?:(?:sure|ok|okay|certainly|of course)[!,.]\s+)?"
    r"(?:(?:here|these|this)(?:'s| is| are) |(?:i(?:'ll| will) )?(?:use|using|call|calling|with) )?"
    r"(?:(?:the|my|your|its|these|following|right|correct|corrected|tool|function|call|action|json|it with) )*"
    r"(?:input|arguments?|args|param(?:eter)?s?|json|call|request|object)"
    r"(?: (?:for|of|to) (?:the )?[\w.`-]{1,60}(?: (?:tool|function|call))?)?"
    r"\s*:[ \t]*(?:\r?\n)*[ \t]*(?=[{`])",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\b(?:not|wrong|errors?|example|invalid|instead|never|observation|result|don't|didn't)\b", re.IGNORECASE
)
_COMMENTS = re.compile(r"(?:\s*(?://[^\n]*\n|/\*(?:[^*]|\*(?!/))*+\*/))+\s*(?=\{)")
_END_TOKENS = re.compile(
    r"(?:\s*(?:<\|(?:im_end|eot_id|eom_id|end|endoftext|end_of_text)\|>|</s>|<eos>|<end_of_turn>))+\s*\Z"
)
_END_CHARS = 200
_THOUGHT = re.compile(r"\s*<(think|thinking)>.*?</\1>\s*", re.DOTALL)
_TAG = re.compile(
    r"<(tool_call|tool_input|tool_args|action_input|arguments?|args|parameters|params|input|json|function_call)>",
    re.IGNORECASE,
)
_FENCE_INFO = re.compile(r"(```+|~~~+)[ \t]*([\w+.-]*)[ \t]*(?:\r?\n|(?=[ ]*[{\[]))")


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """The text inside the wrappings, and a word for each that was removed.

    Attributes:
        prose: There were words before or after it that are not a known label: the object may be part of a text.
        language: The language of the outermost fence, "" when it named none; None without a fence.
    """

    text: str
    repairs: tuple[str, ...] = ()
    prose: bool = False
    language: str | None = None

    @property
    def is_code(self) -> bool:
        """It was a fence of a language that arguments are not written in, such as SQL or Python."""
        return self.language is not None and self.language not in _DATA_LANGUAGES


def strip_model_tokens(text: str) -> str | None:
    """The text without end tokens of a model and without its thoughts; None when it has none."""
    thought = _THOUGHT.match(text)
    bare = text[thought.end() :] if thought else text
    tail = max(len(bare) - _END_CHARS, 0)
    found = _END_TOKENS.search(bare, tail)
    if found and not (found[0].strip() == "</s>" and "<s>" in bare):
        bare = bare[: found.start()]
    return None if bare == text else bare


def strip_sure_label(text: str) -> str | None:
    """The text after `Action Input:`, whatever it is; None without that label."""
    if text.startswith(("Thought:", "Action:", "Reasoning:")) and text.count("\nAction Input:") == 1:
        return text.partition("\nAction Input:")[2]
    label = _LABEL.match(text)
    return text[label.end() :] if label and _SURE_LABEL.match(label[1]) else None


def unwrap(text: str, properties: Collection[str]) -> Unwrapped:
    """Removes every layer around the arguments. The names of the tool's properties are not labels."""
    repairs: dict[str, None] = {}
    prose = False
    language: str | None = None
    text = _stripped(text)
    for _ in range(_MAX_LAYERS):
        if fence := _fenced(text):
            text, info = fence
            language = info if language is None else language
            repairs["code_fence"] = None
            if language not in _DATA_LANGUAGES:
                break
            continue
        if (inner := _tagged(text)) is not None:
            repairs["tag"] = None
        elif (inner := _quoted(text)) is not None:
            repairs["quoted"] = None
        elif comments := _COMMENTS.match(text):
            inner = text[comments.end() :]
            repairs["comment"] = None
        elif (inner := _labelled(text, properties)) is not None:
            repairs["label"] = None
        elif not prose and (inner := _in_prose(text, properties)) is not None:
            prose = True
            repairs["label"] = None
        else:
            break
        text = _stripped(inner)
    return Unwrapped(text, tuple(repairs), prose, language)


def _stripped(text: str) -> str:
    """Without space around it; the first line keeps its indentation if there are more lines."""
    text = text.rstrip(SPACE)
    bare = text.lstrip(SPACE)
    if "\n" not in bare:
        return bare
    lead = text[: len(text) - len(bare)]
    return lead[lead.rfind("\n") + 1 :].strip("\ufeff\u200b") + bare


def _fenced(text: str) -> tuple[str, str] | None:
    """The content and the language of a text that is one fence as a whole."""
    bare = text.lstrip(SPACE)
    info = _FENCE_INFO.match(bare)
    inner = bare[info.end() :].removesuffix(info[1]) if info else ""
    return (_stripped(inner), info[2].lower()) if info and info[1] not in inner else None


def _tagged(text: str) -> str | None:
    tag = _TAG.match(text)
    return text[tag.end() :].removesuffix(f"</{tag[1]}>") if tag else None


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
    label = _LABEL.match(text) or _BARE_LABEL.match(text)
    if label is None or label[1] in properties:
        return None
    inner = text[label.end() :].lstrip(SPACE)
    return inner if inner.startswith(("{", "```", "`{", "<")) else None


def _in_prose(text: str, properties: Collection[str]) -> str | None:
    """The one fence of data in a text, or the object after a line that ends with a colon."""
    if (start := text.find("```")) >= 0 and text.count("```") == 2:
        info = _FENCE_INFO.match(text, start)
        end = text.rfind("```")
        if info and info[2].lower() in _DATA_LANGUAGES and text[info.end() :].lstrip(SPACE).startswith("{"):
            return text[start : end + 3] if _announces(text[:start]) else None
        return None
    if (label := _PROSE_LABEL.match(text)) and text[: label.end()].rstrip(SPACE + ":") not in properties:
        return text[label.end() :]
    return None


def _announces(before: str) -> bool:
    """Whether the words before a fence may announce arguments: not if they deny it, nor if their last line, which ends
    with a colon, announces something else."""
    if "{" in before or _DENIED.search(before):
        return False
    last = before.rstrip(SPACE)
    if not last.endswith(":"):
        return True
    sentence = last[max(last.rfind(mark) for mark in "\n.!?") + 1 :]
    return _PROSE_LABEL.match(f"{sentence.strip()} {{") is not None
