"""Secrets behind a name with only blanks or a word in between: `--password x`, `the password is x1`.

Owns options, shell statements and sentences, and which of these only talk about a secret. `assignments` finds the
names, and reads values behind a sign such as `=`.
"""

import re

from tarsy_tasks.masking.name_match import NameMatch
from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.rules.vocabulary import PROSE_WORDS
from tarsy_tasks.masking.value_spans import Value, read_value
from tarsy_tasks.masking.values import is_made_up, is_metavariable, is_prose, is_secret, is_uuid

__all__ = [
    "ARGUMENT",
    "ATTRIBUTE_VALUE",
    "FIELD",
    "FOLLOWING_VALUE",
    "VALUE_BELOW",
    "read_following_value",
    "read_value_below",
]

_CONNECTOR = (
    r"\\*[\"'`]?[ \t]+(?:(?:for|of)[ \t]+[^\s]+[ \t]+)?(?:(?:is|was|to|as|are|reads|equals|lautet|ist|es|est"
    r"|(?:(?:has|have)[ \t]+been[ \t]+)?(?:re)?(?:set|changed|rotated)[ \t]+to|-)(?:[ \t]*:)?[ \t]+)?"
)
FOLLOWING_VALUE = rf"{_CONNECTOR}(?:\\*[\"'`][^\s]|[^\s\"'`=:]*\d)"
_LINE_BREAK = r"\\*[\"']?,?[ \t]*\r?\n[ \t]*(?:-[ \t]+)?"
VALUE_BELOW = rf"{_LINE_BREAK}(?:[\"'][^\s\-]|[^\s\-\"'])"
ARGUMENT = r"[ \t]+[^\s]"
_SHELL = re.compile(r"(?:(?:^|\s)(?:ENV|ARG|export|setenv|setx)|(?:^|\n)[ \t>$]*set)[ \t]+(?:-\w+[ \t]+)*$")
_LOGIN = re.compile(r"(?:^|\s)(?:machine|default|login|account)[ \t][^\n]*\n?[^\n]*$")
_WHOSE = re.compile(r"\W*(?:for|of)[ \t]+[^\s]+[ \t]+$")
_NEXT_WORD = re.compile(r"[ \t]+([A-Za-z]+)")
_CONNECTING = re.compile(_CONNECTOR)
_KEYWORD = re.compile(r"(?:^|[\s({]):$")
"""`:password "x"`, in Lisp and Ruby."""
_BEFORE_ARGUMENT = re.compile(_LINE_BREAK)
_NO_VALUE = re.compile(r"\(|[,;)\]][\s,;)]")
"""A remark in brackets; punctuation behind a closing quote."""
_MORE_COLUMNS = re.compile(r"(?: {2,}|\t)[^\s#]")
_DECLARED = re.compile(r"\b(?:resource|data|ephemeral|module|provider)[ \t]+\\*\"$")
_OPTION = re.compile(r"--?[a-zA-Z][A-Za-z\-]*(?:[=\s)]|$)|-(?:\s|$)")
FIELD = re.compile(r"(?:[a-z][a-z\d_.\-]{0,63}|[A-Z][A-Z\d_]{0,63}|[a-z]+(?:[A-Z][a-z]+)+)[=:](?!=|$)")
ATTRIBUTE_VALUE = re.compile(r"[\w\]]=[\"']$")
_VALUE_MARKS = frozenset("=:@")
"""Behind one of these is a value, not a name."""


def read_following_value(named: NameMatch) -> Value | None:
    """`--password x`, `ENV PASSWORD x`, `login bob password x`, `the password is x1`, `password "x"`."""
    text = named.text
    before = text[max(0, named.start - 1) : named.start]
    if _DECLARED.search(named.before) or ATTRIBUTE_VALUE.search(named.before):
        return None
    connector = _CONNECTING.match(text, named.end)
    is_keyword = _KEYWORD.search(named.before) is not None and connector is not None and connector[0] == " "
    if (
        connector is None
        or (before in _VALUE_MARKS and not is_keyword)
        or "/" in named.name
        or named.name.startswith("$")
        or named.name.lower() == "pass"
    ):
        return None  # not a value: the result for a path, a variable that is read, the verb "to pass"
    value = read_value(text, connector.end())
    if value is None or _OPTION.match(text, value.start):
        return None
    content = text[value.start : value.end]
    is_option = named.text[named.start] == "-"
    strength = Strength.STRONG if is_option and named.name.endswith("token") else named.strength
    # Backticks may contain code, except on a command line.
    is_text = is_option or (value.is_quoted and text[value.start - 1] != "`")
    if not is_secret(content, strength, is_quoted=is_text):
        return None
    if is_option and content.isalpha() and ("  " in connector[0] or _is_sentence(text, value.end)):
        return None  # what it is for
    is_whose = _WHOSE.match(connector[0]) is not None and (
        not value.is_quoted or not is_made_up(content) or is_uuid(content)
    )
    if not is_option and (is_whose or is_metavariable(content) or FIELD.match(content) or _NO_VALUE.match(content)):
        return None
    if value.is_quoted and not is_prose(content):
        return value
    is_column = "  " in connector[0] or "\t" in connector[0]
    if is_column and _MORE_COLUMNS.match(text, value.end):
        return None  # for `tables`
    if is_made_up(content) and (not is_column or named.line_start is not None):
        return value
    return value if is_option or _is_command(named) else None


def _is_sentence(text: str, end: int) -> bool:
    """Whether a sentence continues behind a word."""
    word = _NEXT_WORD.match(text, end)
    return word is not None and word[1].lower() in PROSE_WORDS


def read_value_below(named: NameMatch) -> Value | None:
    """An argument in the line below its option."""
    if named.text[named.start] != "-":
        return None
    lead = _BEFORE_ARGUMENT.match(named.text, named.end)
    value = read_value(named.text, lead.end()) if lead else None
    if value is None or _OPTION.match(named.text, value.start):
        return None
    content = named.text[value.start : value.end]
    return value if is_secret(content, named.strength, is_quoted=True) else None


def _is_command(named: NameMatch) -> bool:
    """Whether the value follows the name because both are in a shell statement or a netrc."""
    before = named.before
    return _SHELL.search(before) is not None or (
        named.strength is Strength.STRONG and "\n\n" not in before and _LOGIN.search(before) is not None
    )
