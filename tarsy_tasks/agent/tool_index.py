"""Finding tools by words: a full-text index over the tools of one snapshot.

Owns what of a tool is indexed, how much each part counts, and how a text becomes a query of SQLite's FTS5. It does not
know who may call what: `search` yields the tools in order, and its caller leaves out those that do not count.

Words are stemmed (Porter's algorithm, for English). Rows of synonyms are added to the tools, not to the query, so that
a word of the tool itself counts more than a word that means the same.
"""

import json
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

from tarsy_tasks.agent.synonyms import EXPANSIONS, STOP_WORDS, SYNONYMS
from tarsy_tasks.models import ToolDefinition

__all__ = ["ToolIndex"]

_WEIGHTS = {"name": 2.0, "server": 2.0, "summary": 2.0, "synonyms": 1.0, "details": 0.2, "parameters": 0.1}
"""How much a word counts, by the part of the tool that it is in. BM25 adds little to what counts 2 or more."""
_HAS_SYNONYMS = "name server summary"
_OWN_CHARS = 200
_SUMMARY_WORDS = 30
_DETAIL_WORDS = 60
_PARAMETER_WORDS = 20
_PARAMETERS = 40
_QUERY_CHARS = 4_000
_QUERY_WORDS = 24
_SHORTEST_BEGINNING = 3
_NAMED = 1.25
"""By what the tools of a server count more, if the query names it."""
_SEARCH = f"""
    SELECT rowid FROM tools WHERE tools MATCH :match
    ORDER BY bm25(tools, {", ".join(map(str, _WEIGHTS.values()))})
        * iif(server_id IN (SELECT value FROM json_each(:named)), {_NAMED}, 1), rowid
"""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CAMEL_CASE = re.compile(r"\b[a-z]+(?:[A-Z][a-z]+)+\b")
"""A name of code. Those that begin with a capital are mostly products: GitHub, MongoDB."""
_WORD = re.compile(r"[^\W_]+")
_URL = re.compile(r"https?://\S*|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|dev)\b\S*")
_FILE_NAME = re.compile(r"[\w-]\.[A-Za-z][A-Za-z0-9]{1,4}(?![\w./-])")
_END_OF_SENTENCE = re.compile(r"[.!?:;]\s|\n")


class ToolIndex:
    """The index over some tools, which do not change. Safe to share between threads.

    Raises:
        RuntimeError: The SQLite of this Python was built without FTS5.
    """

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = tools
        self._servers = _read_servers(tools)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._fill()

    def search(self, text: str, limit: int, is_offered: Callable[[ToolDefinition], bool]) -> list[ToolDefinition]:
        """The tools that fit a text best, best first. What the text looks like does not matter: it is only words."""
        words = _read_query(text)
        if not words:
            return []
        named = self._find_servers(words)
        parameters = {"match": _any_of([*words, *named]), "named": json.dumps(named)}
        found: list[ToolDefinition] = []
        with self._lock, closing(self._database.execute(_SEARCH, parameters)) as rows:
            for (number,) in rows:
                if is_offered(self._tools[number]):
                    found.append(self._tools[number])
                    if len(found) == limit:
                        break
        return found

    def _find_servers(self, words: list[str]) -> list[str]:
        """The servers that a query names, by a word of their id or by its beginning."""
        named = [server for server, own in self._servers.items() if not own.isdisjoint(words)]
        beginnings = tuple(word for word in words if len(word) >= _SHORTEST_BEGINNING)
        return named or [server for server in self._servers if server.lower().startswith(beginnings)]

    def _fill(self) -> None:
        try:
            self._database.execute(
                f"CREATE VIRTUAL TABLE tools USING fts5({', '.join(_WEIGHTS)}, server_id UNINDEXED,"
                " tokenize = 'porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            raise RuntimeError(f"tools cannot be searched: the SQLite of this Python has no FTS5 ({error})") from None
        rows = [_read(tool) for tool in self._tools]
        self._insert(rows)
        synonyms: list[dict[str, None]] = [{} for _ in rows]
        for words in SYNONYMS:
            match = f"{{{_HAS_SYNONYMS}}} : ({_any_of(words)})"
            for (number,) in self._database.execute("SELECT rowid FROM tools WHERE tools MATCH ?", (match,)):
                synonyms[number].update(dict.fromkeys(" ".join(words).split()))
        for row, words in zip(rows, synonyms, strict=True):
            row["synonyms"] = " ".join(words)
        self._database.execute("DELETE FROM tools")
        self._insert(rows)
        self._database.commit()

    def _insert(self, rows: list[dict[str, str]]) -> None:
        columns = [*_WEIGHTS, "server_id"]
        self._database.executemany(
            f"INSERT INTO tools(rowid, {', '.join(columns)}) VALUES (:number, {', '.join(f':{each}' for each in columns)})",
            ({"number": number, **row} for number, row in enumerate(rows)),
        )


def _read_query(text: str) -> list[str]:
    """The words to look for, each once."""
    read, urls = _URL.subn(" ", text[:_QUERY_CHARS])
    written = _WORD.findall(_CAMEL_CASE.sub(lambda found: _split_camel(found[0]), read).lower())
    spaced = f" {' '.join(written)} "
    added = [words for phrase, words in EXPANSIONS.items() if f" {phrase} " in spaced]
    added += ["url page"] * bool(urls)
    added += ["file"] * bool(_FILE_NAME.search(read))
    words = dict.fromkeys([*written, *" ".join(added).split()])
    return ([word for word in words if word not in STOP_WORDS] or list(words))[:_QUERY_WORDS]


def _read(tool: ToolDefinition) -> dict[str, str]:
    """What of a tool is indexed, by column."""
    description = tool.description or tool.title or str(tool.annotations.get("title", ""))
    summary, details = _cut(description)
    return {
        "server_id": tool.server,
        "name": _name(tool.tool),
        "server": f"{_name(tool.server)}",
        "summary": _first_words(f"{tool.title} {summary}", _SUMMARY_WORDS),
        "synonyms": "",
        "parameters": _first_words(" ".join(_parameters(tool.input_schema)), _PARAMETER_WORDS),
        "details": _first_words(details, _DETAIL_WORDS),
    }


def _name(text: str) -> str:
    return f"{text} {split}" if (split := _split_camel(text)) != text else text


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
            yield _first_words(described, 8)


def _split_camel(text: str) -> str:
    return _CAMEL.sub(" ", text)


def _first_words(text: str, count: int) -> str:
    return " ".join(_WORD.findall(text[: 20 * count])[:count])


def _read_servers(tools: Sequence[ToolDefinition]) -> dict[str, frozenset[str]]:
    """By server the words of its id that are its own: most tools that have them in their names are of this server.
    A server named `memory` is not meant whenever somebody writes of memory."""
    with_word: dict[str, Counter[str]] = {}
    for tool in tools:
        for word in set(_WORD.findall(_name(f"{tool.name} {tool.description[:_OWN_CHARS]}").lower())):
            with_word.setdefault(word, Counter())[tool.server] += 1
    own: dict[str, frozenset[str]] = {}
    for server in dict.fromkeys(tool.server for tool in tools):
        words = _WORD.findall(_name(server).lower())
        own[server] = frozenset(word for word in words if with_word[word][server] * 2 >= with_word[word].total())
    return own


def _any_of(words: Iterable[str]) -> str:
    return " OR ".join(f'"{word}"' for word in words)
