"""Finding tools by words: an index over the tools of one snapshot.

Owns what of a tool is indexed, how much each part counts, and how a text becomes words to look for. It does not know
who may call what: its caller says which tools count.

The order is that of BM25, times the square root of the share of the query that a tool has. Rows of synonyms are added
to the tools, not to the query: so what a word counts for a tool is known when the index is built, and a word that means
the same as many others counts little. FTS5 gives only the stems: its `bm25` counts again for every tool that has any of
the words, which takes too long for 5,000 tools.
"""

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from typing import Any, cast

from tarsy_tasks.agent.stemmer import Stemmer
from tarsy_tasks.agent.synonyms import ABBREVIATIONS, PHRASES, STOP_WORDS, SYNONYMS
from tarsy_tasks.models import ToolDefinition

__all__ = ["ToolIndex"]

_WEIGHTS = {"name": 2.0, "server": 2.0, "summary": 2.0, "synonyms": 1.0, "details": 0.2, "parameters": 0.1}
"""How much a word counts, by the part of the tool that it is in."""
_HAVE_SYNONYMS = ("name", "server", "summary")
_SATURATION = 1.2
_LENGTH_SHARE = 0.6
_COVERAGE_POWER = 0.5
_ADDED = 0.5
_AFFINITY = 0.5
_AFFINITY_SATURATION = 0.1
_NAMED = 1.25
"""By what the tools of a server count more, if the query names it."""
_SHORTEST_BEGINNING = 3
_OWN_CHARS = 200
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
_DURATION = re.compile(r"\bfor \d+ (?:second|minute|hour|day|week)")
_END_OF_SENTENCE = re.compile(r"[.!?:;]\s|\n")

Parts = dict[str, list[str]]
"""Words of one tool, by part."""


class ToolIndex:
    """The index over some tools, which do not change. Safe to share between threads.

    Raises:
        RuntimeError: The SQLite of this Python was built without FTS5.
    """

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = tools
        self._servers = _read_servers(tools)
        self._stemmer = Stemmer()
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        """By stem, the numbers of the tools that have it, and what it counts for each of them."""
        self._affinity: dict[str, dict[str, float]] = {}
        """By stem, how much it speaks of each server that has it in its tools' own words."""
        self._fill([_read(tool) for tool in tools])

    def search(
        self, text: str, limit: int, permits: Callable[[ToolDefinition], bool] | None = None
    ) -> list[ToolDefinition]:
        """As `ToolList.search`."""
        found: list[ToolDefinition] = []
        for number in self._rank(*_read_query(text)):
            if permits is None or permits(self._tools[number]):
                found.append(self._tools[number])
                if len(found) == limit:
                    break
        return found

    def _rank(self, words: list[str], added: list[str]) -> list[int]:
        """Numbers of tools, best first; `added` are words of the query that nobody wrote."""
        named = self._find_servers(words)
        names = [word for server in named for word in _words(_name(server))]
        weights = dict.fromkeys(self._stemmer.find(names), (1.0, 0.0))
        weights |= dict.fromkeys(self._stemmer.find(added), (_ADDED, _ADDED))
        weights |= dict.fromkeys(asked := self._stemmer.find(words), (1.0, 1.0))
        scores: dict[int, float] = {}
        coverage: dict[int, float] = {}
        for stem, (weight, covered) in weights.items():
            numbers, counts = self._postings.get(stem, ((), ()))
            share = covered * log(1 + len(self._tools) / (1 + len(numbers)))
            for number, count in zip(numbers, counts, strict=True):
                scores[number] = scores.get(number, 0) + weight * count
                coverage[number] = coverage.get(number, 0) + share
        affinity = self._find_affinity(asked)
        ranked: list[tuple[float, int]] = []
        for number, score in scores.items():
            server = self._tools[number].server
            factor = (_NAMED if server in named else 1) * (1 + _AFFINITY * affinity.get(server, 0))
            ranked.append((-score * factor * coverage[number] ** _COVERAGE_POWER, number))
        return [number for _, number in sorted(ranked)]

    def _find_affinity(self, stems: list[str]) -> dict[str, float]:
        """By server, how much a query speaks of what the server is about; 1 for the server it speaks of most."""
        found: dict[str, float] = {}
        for stem in stems:
            for server, count in self._affinity.get(stem, {}).items():
                found[server] = found.get(server, 0) + count
        most = max(found.values(), default=0)
        return {server: count / most for server, count in found.items()} if most else {}

    def _find_servers(self, words: list[str]) -> set[str]:
        """The servers that a query names, by a word of their id or by its beginning."""
        named = {server for server, own in self._servers.items() if not own.isdisjoint(words)}
        beginnings = tuple(word for word in words if len(word) >= _SHORTEST_BEGINNING)
        return named or {server for server in self._servers if server.lower().startswith(beginnings)}

    def _fill(self, tools: list[Parts]) -> None:
        words = {word for parts in tools for each in parts.values() for word in each}
        stem_of = self._stemmer.learn(words | {word for row in SYNONYMS for phrase in row for word in phrase.split()})
        synonyms = _Synonyms(stem_of)
        lengths: list[int] = []
        found: dict[str, dict[int, float]] = {}
        own: dict[str, Counter[str]] = {}
        for number, parts in enumerate(tools):
            stems = {part: [stem_of[word] for word in words] for part, words in parts.items()}
            for stem in set[str]().union(*(stems[part] for part in _HAVE_SYNONYMS)):
                own.setdefault(stem, Counter())[self._tools[number].server] += 1
            stems["synonyms"] = list(synonyms.find(stems[part] for part in _HAVE_SYNONYMS))
            lengths.append(sum(map(len, stems.values())))
            for part, each in stems.items():
                for stem in each:
                    of_stem = found.setdefault(stem, {})
                    of_stem[number] = of_stem.get(number, 0) + _WEIGHTS[part]
        mean = sum(lengths) / len(lengths) if lengths else 1
        penalties = [_SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length / mean) for length in lengths]
        for stem, counts in found.items():
            rarity = log(1 + (len(tools) - len(counts) + 0.5) / (len(counts) + 0.5)) * (1 + _SATURATION)
            weights = (rarity * count / (count + penalties[number]) for number, count in counts.items())
            self._postings[stem] = (array("I", counts), array("f", weights))
        self._fill_affinity(own)

    def _fill_affinity(self, own: dict[str, Counter[str]]) -> None:
        sizes = Counter(tool.server for tool in self._tools)
        for stem, counts in own.items():
            rarity = log(1 + (len(sizes) - len(counts) + 0.5) / (len(counts) + 0.5))
            self._affinity[stem] = {
                server: rarity * (share := count / sizes[server]) / (share + _AFFINITY_SATURATION)
                for server, count in counts.items()
            }


class _Synonyms:
    """The rows of synonyms, as stems."""

    def __init__(self, stem_of: Mapping[str, str]) -> None:
        self._added: list[list[str]] = []
        self._starting: dict[str, list[tuple[list[str], int]]] = {}
        """By its first stem, a phrase and its row."""
        for number, row in enumerate(SYNONYMS):
            phrases = [[stem_of[word] for word in phrase.split()] for phrase in row]
            self._added.append([stem for phrase in phrases for stem in phrase])
            for phrase in phrases:
                self._starting.setdefault(phrase[0], []).append((phrase, number))

    def find(self, texts: Iterable[list[str]]) -> dict[str, None]:
        """The stems of all rows of which a phrase is in one of the texts, each once."""
        rows: dict[int, None] = {}
        for text in texts:
            for place, stem in enumerate(text):
                for phrase, row in self._starting.get(stem, ()):
                    if len(phrase) == 1 or text[place : place + len(phrase)] == phrase:
                        rows[row] = None
        return dict.fromkeys(stem for row in rows for stem in self._added[row])


def _read_query(text: str) -> tuple[list[str], list[str]]:
    """The words to look for, each once: those of the query, and those that it has besides."""
    read, urls = _URL.subn(" ", text[:_QUERY_CHARS])
    written = _words(_CAMEL_CASE.sub(lambda found: _split_camel(found[0]), read))
    spaced = f" {' '.join(written)} "
    added = [words for phrase, words in PHRASES.items() if f" {phrase} " in spaced]
    added += ["url page fetch"] * bool(urls) + ["file"] * bool(_FILE_NAME.search(read))
    added += ["expire"] * bool(_DURATION.search(read))
    full = " ".join(ABBREVIATIONS.get(word, word) + (f" {word}" if word in ABBREVIATIONS else "") for word in written)
    own = list(dict.fromkeys(word for word in full.split() if word not in STOP_WORDS))
    more = dict.fromkeys(word for word in " ".join(added).split() if word not in own)
    return (own or ([] if more else list(dict.fromkeys(written))))[:_QUERY_WORDS], list(more)[:_QUERY_WORDS]


def _read(tool: ToolDefinition) -> Parts:
    summary, details = _cut(tool.description or str(tool.annotations.get("title", "")))
    return {
        "name": _words(_name(tool.tool)),
        "server": _words(_name(tool.server)),
        "summary": _first_words(f"{tool.title} {summary}", _SUMMARY_WORDS),
        "details": _first_words(details, _DETAIL_WORDS),
        "parameters": _first_words(" ".join(_parameters(tool.input_schema)), _PARAMETER_WORDS),
    }


def _read_servers(tools: Sequence[ToolDefinition]) -> dict[str, frozenset[str]]:
    """By server the words of its id that are its own: most tools that have them in their texts are of this server.
    A server named `memory` is not meant whenever somebody writes of memory."""
    with_word: dict[str, Counter[str]] = {}
    for tool in tools:
        for word in set(_words(_name(f"{tool.name} {tool.description[:_OWN_CHARS]}"))):
            with_word.setdefault(word, Counter())[tool.server] += 1
    own: dict[str, frozenset[str]] = {}
    for server in dict.fromkeys(tool.server for tool in tools):
        words = _words(_name(server))
        own[server] = frozenset(word for word in words if with_word[word][server] * 2 >= with_word[word].total())
    return own


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
    return f"{text} {split}" if (split := _split_camel(text)) != text else text


def _split_camel(text: str) -> str:
    return _CAMEL.sub(" ", text)


def _first_words(text: str, count: int) -> list[str]:
    return _words(text[: _LONGEST_WORD * count])[:count]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())
