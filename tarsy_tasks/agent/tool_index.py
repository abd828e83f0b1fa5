"""Finding tools by words: an index over the tools of one snapshot.

Owns how much each word counts for a tool. It does not know who may call what: its caller says which tools count.

The order is that of BM25, times the square root of the share of the query that a tool has, times how much the query
speaks of what the tool's server is about. Rows of synonyms are added to the tools, not to the query: so what a word
counts for a tool is known when the index is built, and a word that means the same as many others counts little. FTS5
gives only the stems: its `bm25` counts again for every tool that has any of the words, which takes too long for 5,000
tools.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log

from tarsy_tasks.agent.stemmer import Stemmer
from tarsy_tasks.agent.synonyms import SYNONYMS
from tarsy_tasks.agent.tool_words import Parts, Query, is_reading, read_query, read_tool, split_name
from tarsy_tasks.models import ToolDefinition

__all__ = ["ToolIndex"]

_WEIGHTS = {"name": 2.0, "server": 2.0, "summary": 2.0, "synonyms": 1.0, "details": 0.2, "parameters": 0.1}
"""How much a word counts, by the part of the tool that it is in."""
_HAVE_SYNONYMS = ("name", "server", "summary")
_SATURATION = 1.2
_LENGTH_SHARE = 0.6
_COVERAGE_POWER = 0.5
_ADDED = 0.5
"""How much a word counts that nobody wrote, but that a phrase of the query means, or that is like an unknown word."""
_AFFINITY = 0.5
"""By what share more the tools of the server count of which a query speaks most."""
_AFFINITY_SATURATION = 0.1
_NAMED = 1.25
"""By what the tools of a server count more, if the query names it."""
_READS = 1.3
"""By what tools that only read count more for a question: `is anything running` wants none that stops things."""
_SHORTEST_BEGINNING = 3
_NEAR = 3
_OWN_CHARS = 200


class ToolIndex:
    """The index over some tools, which do not change. Safe to share between threads.

    Raises:
        RuntimeError: The SQLite of this Python was built without FTS5.
    """

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = tools
        self._servers = _read_servers(tools)
        self._stems: list[str] = []
        """All, sorted."""
        self._stemmer = Stemmer()
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        """By stem, the numbers of the tools that have it, and what it counts for each of them."""
        self._affinity: dict[str, dict[str, float]] = {}
        """By stem, how much it speaks of each server that has it in its tools' own words."""
        self._reads = [is_reading(tool) for tool in tools]
        self._fill([read_tool(tool) for tool in tools])

    def search(
        self, text: str, limit: int, permits: Callable[[ToolDefinition], bool] | None = None
    ) -> list[ToolDefinition]:
        """As `ToolList.search`."""
        found: list[ToolDefinition] = []
        for number in self._rank(read_query(text)):
            if permits is None or permits(self._tools[number]):
                found.append(self._tools[number])
                if len(found) == limit:
                    break
        return found

    def _rank(self, query: Query) -> list[int]:
        """Numbers of tools, best first."""
        named = self._find_servers(query.words)
        asked = self._stemmer.find(query.words)
        added = [*self._stemmer.find(query.added), *(near for word in query.words for near in self._find_near(word))]
        names = self._stemmer.find(word for server in named for word in split_name(server))
        weights = dict.fromkeys(names, (1.0, 0.0)) | dict.fromkeys(added, (_ADDED, _ADDED))
        weights |= dict.fromkeys(asked, (1.0, 1.0))
        scores: dict[int, float] = {}
        coverage: dict[int, float] = {}
        for stem, (weight, share) in weights.items():
            numbers, counts = self._postings.get(stem, ((), ()))
            covered = share * log(1 + len(self._tools) / (1 + len(numbers)))
            for number, count in zip(numbers, counts, strict=True):
                scores[number] = scores.get(number, 0) + weight * count
                coverage[number] = coverage.get(number, 0) + covered
        factors = self._weigh_servers(asked, named)
        ranked: list[tuple[float, int]] = []
        for number, score in scores.items():
            factor = factors[self._tools[number].server]
            if query.is_question and self._reads[number]:
                factor *= _READS
            ranked.append((-score * factor * coverage[number] ** _COVERAGE_POWER, number))
        return [number for _, number in sorted(ranked)]

    def _find_near(self, word: str) -> list[str]:
        """For a word that no tool has: the stems of two that it is made of, or those that begin with its stem."""
        if word in self._stemmer or len(word) < _SHORTEST_BEGINNING:
            return []
        [stem] = self._stemmer.find([word])
        if stem in self._postings:
            return []
        for place in range(_SHORTEST_BEGINNING, len(word) - _SHORTEST_BEGINNING + 1):
            if word[:place] in self._stemmer and word[place:] in self._stemmer:
                return self._stemmer.find([word[:place], word[place:]])
        first = bisect_left(self._stems, stem)
        return [near for near in self._stems[first : first + _NEAR] if near.startswith(stem)]

    def _weigh_servers(self, stems: list[str], named: set[str]) -> dict[str, float]:
        """By server, the factor of its tools: how much a query speaks of what the server is about, and of itself."""
        spoken = dict.fromkeys(self._servers, 0.0)
        for stem in stems:
            for server, count in self._affinity.get(stem, {}).items():
                spoken[server] += count
        most = max(spoken.values(), default=0) or 1
        return {
            server: (_NAMED if server in named else 1) * (1 + _AFFINITY * count / most)
            for server, count in spoken.items()
        }

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
        self._stems = sorted(found)
        self._fill_affinity(own)

    def _fill_affinity(self, own: Mapping[str, Counter[str]]) -> None:
        """`own` are, by stem and by server, the tools that have it in their own words."""
        sizes = Counter(tool.server for tool in self._tools)
        for stem, counts in own.items():
            rarity = log(1 + (len(sizes) - len(counts) + 0.5) / (len(counts) + 0.5))
            shares = {server: count / sizes[server] for server, count in counts.items()}
            self._affinity[stem] = {
                server: rarity * share / (share + _AFFINITY_SATURATION) for server, share in shares.items()
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


def _read_servers(tools: Sequence[ToolDefinition]) -> dict[str, frozenset[str]]:
    """By server the words of its id that are its own: most tools that have them in their texts are of this server.
    A server named `memory` is not meant whenever somebody writes of memory."""
    with_word: dict[str, Counter[str]] = {}
    for tool in tools:
        for word in set(split_name(f"{tool.name} {tool.description[:_OWN_CHARS]}")):
            with_word.setdefault(word, Counter())[tool.server] += 1
    own: dict[str, frozenset[str]] = {}
    for server in dict.fromkeys(tool.server for tool in tools):
        words = split_name(server)
        own[server] = frozenset(word for word in words if with_word[word][server] * 2 >= with_word[word].total())
    return own
