"""Finding tools by words: a full-text index over the tools of one snapshot.

Owns what of a tool is indexed, how much each part counts, and how a text becomes a query of SQLite's FTS5. It does not
know who may call what: `search` yields the tools in order, and its caller leaves out those that do not count.

Words are stemmed (Porter's algorithm, for English). Rows of synonyms are added to the tools, not to the query, so that
a word of the tool itself counts more than a word that means the same.
"""

import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

from tarsy_tasks.agent.synonyms import EXPANSIONS, STOP_WORDS, SYNONYMS
from tarsy_tasks.models import ToolDefinition

__all__ = ["ToolIndex"]

_WEIGHTS = {"name": 2.0, "server": 2.0, "summary": 2.0, "synonyms": 1.0, "details": 0.2, "parameters": 0.1}
"""How much a word counts, by the part of the tool that it is in. BM25 adds little to what counts 2 or more."""
_MATCHED_BY_SYNONYMS = ("name", "server", "summary")
_SUMMARY_WORDS = 30
_DETAIL_WORDS = 60
_PARAMETER_WORDS = 60
_PARAMETERS = 40
_QUERY_CHARS = 4_000
_QUERY_WORDS = 24
_SHORTEST_PREFIX = 3
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"[^\W_]+")
_URL = re.compile(r"https?://\S*|\b[\w-]+(?:\.[\w-]+)*\.(?:com|org|net|io|dev)\b\S*")
_FORMS = (
    (re.compile(r"[\w-]\.[A-Za-z][A-Za-z0-9]{1,4}(?![\w./-])"), "file"),
    (re.compile(r"(?<!\S)[#][A-Za-z]"), "channel"),
)
"""What a text is about when a part of it has such a form."""
_END_OF_SENTENCE = re.compile(r"[.!?:;]\s|\n")


class ToolIndex:
    """The index over some tools, which do not change. Safe to share between threads.

    Raises:
        RuntimeError: The SQLite of this Python was built without FTS5.
    """

    def __init__(self, tools: Sequence[ToolDefinition]) -> None:
        self._tools = tools
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._fill()

    def search(self, text: str, limit: int, is_offered: Callable[[ToolDefinition], bool]) -> list[ToolDefinition]:
        """The tools that fit a text best, best first. What the text looks like does not matter: it is only words."""
        words = _read_query(text)
        if not words:
            return []
        meant = [number for number, (_, server) in enumerate(self._servers) if any(map(server.__contains__, words))]
        if not meant:
            meant = [number for number, (name, _) in enumerate(self._servers) if any(len(word) >= _SHORTEST_PREFIX and name.startswith(word) for word in words)]
        found: list[ToolDefinition] = []
        search = _SEARCH.format(",".join(map(str, meant)))
        with self._lock, closing(self._database.execute(search, (_any_of(words) + "".join(f' OR server : "{self._servers[n][0]}"' for n in meant),))) as rows:
            for (number,) in rows:
                if is_offered(self._tools[number]):
                    found.append(self._tools[number])
                    if len(found) == limit:
                        break
        return found

    def _fill(self) -> None:
        try:
            self._database.execute(
                f"CREATE VIRTUAL TABLE tools USING fts5({', '.join(_WEIGHTS)}, padding, number UNINDEXED,"
                " tokenize = 'porter unicode61 remove_diacritics 2')"
            )
        except sqlite3.OperationalError as error:
            raise RuntimeError(f"tools cannot be searched: the SQLite of this Python has no FTS5 ({error})") from None
        rows = [_read(tool) for tool in self._tools]
        self._insert(rows)
        columns = f"{{{' '.join(_MATCHED_BY_SYNONYMS)}}}"
        for words in SYNONYMS:
            match = (f"{columns} : ({_any_of(words)})",)
            for (number,) in self._database.execute("SELECT rowid FROM tools WHERE tools MATCH ?", match):
                rows[number]["synonyms"] += f" {' '.join(words)}"
        self._database.execute("DELETE FROM tools")
        self._insert(rows)
        self._database.commit()

    def _insert(self, rows: list[dict[str, str]]) -> None:
        names = list(dict.fromkeys(tool.server for tool in self._tools))
        numbers = {n: i for i, n in enumerate(names)}
        self._servers = [(n.lower(), set(_WORD.findall(_name(n).lower()))) for n in names]
        places = ", ".join(f":{column}" for column in _WEIGHTS)
        self._database.executemany(
            f"INSERT INTO tools(rowid, {', '.join(_WEIGHTS)}, padding, number) VALUES (:row, {places}, :padding, :number)",
            ({"row": row_id, "number": numbers[tool.server], "padding": "x " * max(0, PAD - sum(len(_WORD.findall(v)) for v in row.values())), **row} for row_id, (row, tool) in enumerate(zip(rows, self._tools))),
        )


def build_search():
    return f"SELECT rowid FROM tools WHERE tools MATCH ? ORDER BY bm25(tools, {', '.join(map(str, _WEIGHTS.values()))}) * CASE WHEN number IN ({{}}) THEN {BOOST} ELSE 1 END, rowid"

BOOST = 2
PAD = 0
_SEARCH = build_search()


def _read_query(text: str) -> list[str]:
    """The words to look for, each once."""
    read, urls = _URL.subn(" ", text[:_QUERY_CHARS])
    written = _WORD.findall(_split_camel(read).lower())
    spaced = f" {' '.join(written)} "
    added = [words for phrase, words in EXPANSIONS.items() if f" {phrase} " in spaced]
    added += ["url page"] * bool(urls)
    added += [words for form, words in _FORMS if form.search(read)]
    words = dict.fromkeys([*written, *" ".join(added).split()])
    return ([word for word in words if word not in STOP_WORDS] or list(words))[:_QUERY_WORDS]


def _read(tool: ToolDefinition) -> dict[str, str]:
    """What of a tool is indexed, by column."""
    description = tool.description or tool.title or str(tool.annotations.get("title", ""))
    summary, details = _cut(description)
    return {
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


def _any_of(words: Iterable[str]) -> str:
    return " OR ".join(f'"{word}"' for word in words)
