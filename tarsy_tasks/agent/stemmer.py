"""The stems of words, so that `listing`, `lists` and `list` are one word.

Owns the use of SQLite's FTS5 for it, which has Porter's algorithm for English and folds case and accents. It does not
know what the words are for.
"""

import sqlite3
import threading
import weakref
from collections.abc import Iterable

__all__ = ["Stemmer"]


class Stemmer:
    """Finds stems, and remembers them. Safe to share between threads.

    Raises:
        RuntimeError: The SQLite of this Python was built without FTS5.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        # Python 3.13 warns of a connection that nobody closed.
        weakref.finalize(self, self._database.close)
        try:
            self._database.executescript(
                "CREATE VIRTUAL TABLE words USING fts5(word, tokenize = 'porter unicode61 remove_diacritics 2');"
                "CREATE VIRTUAL TABLE stems USING fts5vocab(words, instance);"
            )
        except sqlite3.OperationalError as error:
            raise RuntimeError(f"tools cannot be searched: the SQLite of this Python has no FTS5 ({error})") from None

    def __contains__(self, word: str) -> bool:
        """Whether it was learned."""
        return word in self._known

    def learn(self, words: Iterable[str]) -> dict[str, str]:
        """The stem of each word, which is remembered."""
        wanted = list(words)
        with self._lock:
            if new := list({word for word in wanted if word not in self._known}):
                self._known.update(self._find(new))
            return {word: self._known[word] for word in wanted}

    def find(self, words: Iterable[str]) -> list[str]:
        """The stems of some words, each once. What is new is not remembered: a search may have any words."""
        wanted = list(dict.fromkeys(words))
        with self._lock:
            new = [word for word in wanted if word not in self._known]
            found = self._find(new) if new else {}
            return list(dict.fromkeys(found.get(word) or self._known[word] for word in wanted))

    def _find(self, words: list[str]) -> dict[str, str]:
        """A word that is none for SQLite is its own stem."""
        found = {word: word for word in words}
        self._database.execute("BEGIN")
        self._database.executemany("INSERT INTO words(rowid, word) VALUES (?, ?)", enumerate(words))
        for stem, number in self._database.execute("SELECT term, doc FROM stems WHERE offset = 0"):
            found[words[number]] = stem
        self._database.execute("ROLLBACK")
        return found
