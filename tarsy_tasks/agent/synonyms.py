"""Words of the search for tools: which ones mean the same, and which ones say nothing.

Owns the rows of synonyms, which are in `synonyms.txt`.
"""

from importlib.resources import files

__all__ = ["EXPANSIONS", "STOP_WORDS", "SYNONYMS"]


def _read_rows(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [[phrase.strip() for phrase in row.split(",")] for row in rows]


SYNONYMS = _read_rows(files("tarsy_tasks.agent").joinpath("synonyms.txt").read_text("utf-8"))
"""Phrases that mean the same, row by row."""

EXPANSIONS = {
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
    "all": "list",
    "which": "list",
    "are there": "list",
    "do i have": "list",
    "do we have": "list",
    "do we use": "list",
    "ask": "query",
    "google": "web search",
    "news": "web search current",
    "where": "find search location",
    "who": "user author member",
    "why": "logs events failure explain",
    "by accident": "revert undo restore",
    "doing": "status",
    "does not work": "error failure logs",
    "go back": "back previous revert",
    "went wrong": "error failure logs",
    "what happened": "events history log",
    "what is in": "list read contents",
    "s in": "list read contents",
    "keep in mind": "remember store",
    "look at": "view read show",
    "last week": "history recent",
    "right now": "current status",
    "how much": "amount usage cost",
    "how late": "current time",
    "get rid of": "delete",
    "go to": "navigate switch checkout",
    "how big": "size",
    "how far": "distance",
    "how large": "size",
    "how long": "duration",
    "how many": "count number",
    "how often": "count frequency",
    "how slow": "performance latency",
    "log in": "login",
    "look for": "search",
    "look up": "search",
    "set up": "create",
    "shut down": "stop",
    "sign in": "login",
    "sign up": "register",
    "switch off": "disable stop",
    "switch on": "enable start",
    "take back": "revoke undo",
    "turn off": "disable stop",
    "turn on": "enable start",
    "not work": "error failure logs",
    "what time": "current time",
    "when is": "time",
    "who am i": "current user",
    "who wrote": "author",
}
"""What a query has besides: for words that are short for others, and for phrases of words that say nothing alone."""

_STOP_WORDS = """
a about again also am an and any are as at be been but by can could did do does done for from had has have he
her here his how i if in into is it its just let like many me more most much my no not of off on one or our out
over please s she so some such t than that the their them then there these they this those to too up us very want
was we were what when where which while who why will with would yet you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""What says nothing where other words are."""
