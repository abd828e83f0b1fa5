"""Words of the search for tools: which ones mean the same, and which ones say nothing.

Owns the rows of synonyms, which are in `synonyms.txt`.
"""

from importlib.resources import files

__all__ = ["ABBREVIATIONS", "PHRASES", "STOP_WORDS", "SYNONYMS"]


def _read_rows(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [[phrase.strip() for phrase in row.split(",")] for row in rows]


def _read_phrases(text: str) -> dict[str, str]:
    rows = [line.split(":") for line in text.splitlines() if line and not line.startswith("#")]
    return {phrase.strip(): words.strip() for phrases, words in rows for phrase in phrases.split(",")}


SYNONYMS = _read_rows(files("tarsy_tasks.agent").joinpath("synonyms.txt").read_text("utf-8"))
"""Phrases that mean the same, row by row."""

ABBREVIATIONS = {
    "cfg": "configuration",
    "config": "configuration",
    "conf": "configuration",
    "db": "database",
    "dir": "directory",
    "docs": "documentation",
    "env": "environment",
    "gh": "github",
    "img": "image",
    "k8s": "kubernetes",
    "mr": "merge request",
    "mrs": "merge request",
    "msg": "message",
    "ns": "namespace",
    "org": "organization",
    "perf": "performance",
    "pic": "image",
    "pr": "pull request",
    "prs": "pull request",
    "repo": "repository",
    "repos": "repository",
    "svc": "service",
}
"""What short forms in a query stand for."""

PHRASES = _read_phrases(files("tarsy_tasks.agent").joinpath("phrases.txt").read_text("utf-8"))
"""By a phrase, the words that a query with it has besides."""

_STOP_WORDS = """
a about again also am an and any are as at be been but by can could did do does done for from had has have he
her here his how i if in into is it its just let like many me more most much my no not of off on one or our out
over please s she so some such t than that the their them then there these they this those to too up us very want
was we were what when where which while who why will with would yet you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""What says nothing where other words are."""
