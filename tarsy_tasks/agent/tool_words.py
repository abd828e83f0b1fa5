"""The words of tools, and of texts that look for tools.

Owns what of a tool is read, which parts it has, and how a text becomes words to look for. It does not know what the
words count for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from tarsy_tasks.agent.synonyms import ABBREVIATIONS, PHRASES, STOP_WORDS
from tarsy_tasks.models import ToolDefinition

__all__ = ["Parts", "Query", "is_reading", "read_query", "read_tool", "split_name"]

_SUMMARY_WORDS = 30
_DETAIL_WORDS = 60
_PARAMETER_WORDS = 20
_PARAMETER_TEXT_WORDS = 8
_PARAMETERS = 40
_LONGEST_WORD = 20
_QUERY_CHARS = 4_000
_QUERY_WORDS = 24
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CAMEL_CASE = re.compile(r"\b[a-z]+(?:[A-Z][a-z]+)+\b")
"""A name of code. Those that begin with a capital are mostly products: GitHub, MongoDB."""
_WORD = re.compile(r"[^\W_]+")
_URL = re.compile(r"https?://\S*|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|dev)\b\S*")
_FILE_NAME = re.compile(r"[\w-]\.[A-Za-z][A-Za-z0-9]{1,4}(?![\w./-])")
_FOR_A_TIME = re.compile(r"\bfor \d+ (?:second|minute|hour|day|week)", re.IGNORECASE)
_MEANT = ((_URL, "url page fetch"), (_FILE_NAME, "file"), (_FOR_A_TIME, "expire"))
"""What is meant by forms that are no words."""
_QUESTION = re.compile(
    r"\s*(?:what|which|who|whose|where|when|why|how|is|are|was|were|does|do|did|has|have|am|any)\b", re.IGNORECASE
)
_READING_VERBS = """
check count describe explain fetch find get inspect list log logs query read retrieve scan search show status view
"""
_READING = frozenset(_READING_VERBS.split())
_END_OF_SENTENCE = re.compile(r"[.!?:;]\s|\n")

Parts = dict[str, list[str]]
"""Words of one tool, by part."""


@dataclass(frozen=True, slots=True)
class Query:
    """A text that looks for tools.

    Attributes:
        words: Its own, each once.
        added: What its phrases stand for, each once.
        is_question: It asks how things are, and so for a tool that reads.
    """

    words: list[str]
    added: list[str]
    is_question: bool


def read_query(text: str) -> Query:
    """The words to look for."""
    text = text[:_QUERY_CHARS]
    read = _URL.sub(" ", text)
    written = _words(_CAMEL_CASE.sub(lambda found: _CAMEL.sub(" ", found[0]), read))
    spaced = f" {' '.join(written)} "
    phrases = [meant for phrase, meant in PHRASES.items() if f" {phrase} " in spaced]
    phrases += [meant for form, meant in _MEANT if form.search(text if form is _URL else read)]
    spoken = " ".join(f"{word} {ABBREVIATIONS.get(word, '')}" for word in written).split()
    words = dict.fromkeys(word for word in spoken if word not in STOP_WORDS)
    added = dict.fromkeys(word for word in " ".join(phrases).split() if word not in words)
    if not (words or added):
        words = dict.fromkeys(written)
    return Query(list(words)[:_QUERY_WORDS], list(added)[:_QUERY_WORDS], bool(_QUESTION.match(text)))


def read_tool(tool: ToolDefinition) -> Parts:
    """The words of a tool, by part."""
    summary, details = _cut(tool.description or str(tool.annotations.get("title", "")))
    return {
        "name": split_name(tool.tool),
        "server": split_name(tool.server),
        "summary": _first_words(f"{tool.title} {summary}", _SUMMARY_WORDS),
        "details": _first_words(details, _DETAIL_WORDS),
        "parameters": _first_words(" ".join(_parameters(tool.input_schema)), _PARAMETER_WORDS),
    }


def is_reading(tool: ToolDefinition) -> bool:
    """Whether a tool only reads, as it says itself or as its name does."""
    if isinstance(hint := tool.annotations.get("readOnlyHint"), bool):
        return hint
    return not _READING.isdisjoint(split_name(tool.tool))


def split_name(name: str) -> list[str]:
    """The words of a name, in `snake_case`, with hyphens or in `camelCase`, which is also a word itself."""
    return _words(_name(name))


def _cut(description: str) -> tuple[str, str]:
    """The first sentence, and the rest."""
    text = description.strip()
    end = _END_OF_SENTENCE.search(text)
    return (text, "") if end is None else (text[: end.start()], text[end.end() :])


def _parameters(schema: dict[str, Any]) -> Iterator[str]:
    properties: Any = schema.get("properties")
    if not isinstance(properties, dict):
        return
    for name, each in list(cast("dict[str, Any]", properties).items())[:_PARAMETERS]:
        yield _name(name)
        if isinstance(each, dict) and isinstance(described := cast("dict[str, Any]", each).get("description"), str):
            yield " ".join(_first_words(described, _PARAMETER_TEXT_WORDS))


def _name(text: str) -> str:
    """A name, and its words if it is written in camel case."""
    return f"{text} {split}" if (split := _CAMEL.sub(" ", text)) != text else text


def _first_words(text: str, count: int) -> list[str]:
    return _words(text[: _LONGEST_WORD * count])[:count]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
