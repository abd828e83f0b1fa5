"""Secrets in XML, HTML and property lists: `<password>x</password>`, `<name>db.password</name><value>x</value>`.

Owns how elements and attributes name a value. Which names count is for `assignments`, which finds them.
"""

import re

from tarsy_tasks.masking.name_match import NAME_LIMIT, NameMatch
from tarsy_tasks.masking.value_spans import Value
from tarsy_tasks.masking.values import is_label, is_made_up, is_prose, is_secret, looks_random

__all__ = ["COUPLED", "TAGGED", "read_coupled", "read_tagged"]

_ELEMENT_LIMIT = 4096
_ATTRIBUTES = r"(?:[ \t]+[\w:.\-]+[ \t]*=[ \t]*\\*[\"'][^\"'<>\n]*[\"'])*"
TAGGED = rf"(?:\\*[\"']{_ATTRIBUTES})?[ \t]*>"
"""What stands between a name and the content of its element."""
_VALUE_TAG = r"<(?:\w+:)?(?i:\w*value|val|string|data|content|default|text|td|dd|code)(?:[ \t][^<>\n]*)?>"
COUPLED = rf"\s*</[\w:.\-]+>\s*(?:<[\w:]+>[^<>\n]*</[\w:]+>\s*)?{_VALUE_TAG}"
"""What stands between a name that has an element of its own and the element of its value."""

_OPENING = re.compile(rf"\s*(?:{_VALUE_TAG})?\s*(?P<cdata><!\[CDATA\[)?")
_CLOSING_TAG = re.compile(r"</[\w:.\-]*$")
_LAST_WORD = re.compile(r"\s*([^\s<>]+)\s*")
"""Of a text that was cut off."""
_ELEMENT_BEFORE = re.compile(r"(?:^|[\n>])[ \t]*<$")
_NAME_TAG = re.compile(
    r"(?i)<(?:\w+:)?\w*(?:name|key|id|string|variable|field|param|parameter|header|setting|property|option|td|th|dt)"
    r"(?:\s[^<>]*)?>[^<>]{0,60}$"
)


def read_tagged(named: NameMatch) -> Value | None:
    """`<password>x</password>`, `<password type="y">x</password>`, `<entry key="password">x</entry>`."""
    text = named.text
    tag = _CLOSING_TAG.search(text, max(0, named.start - NAME_LIMIT), named.start)
    if tag is None:
        is_named = named.before.endswith("<") or named.is_labelled
        return _read_element(named, named.tail.end()) if is_named else None
    opened = text.rfind(">", max(0, tag.start() - _ELEMENT_LIMIT), _start_of_cdata(text, tag.start()))
    return None if opened < 0 else _read_element(named, opened + 1)


def read_coupled(named: NameMatch) -> Value | None:
    """`<key>password</key><string>x</string>`."""
    return _read_element(named, named.tail.end()) if _NAME_TAG.search(named.before) else None


def _start_of_cdata(text: str, end: int) -> int:
    if not text.endswith("]]>", max(0, end - 3), end):
        return end
    return max(end - _ELEMENT_LIMIT, text.rfind("<![CDATA[", max(0, end - _ELEMENT_LIMIT), end), 0)


def _read_element(named: NameMatch, position: int) -> Value | None:
    text = named.text
    opening = _OPENING.match(text, position, position + _ELEMENT_LIMIT)
    assert opening is not None
    position = opening.end()
    is_raw = opening["cdata"] is not None
    end = text.find("]]>" if is_raw else "<", position, position + _ELEMENT_LIMIT)
    if end < 0 and (word := _LAST_WORD.fullmatch(text, position, position + _ELEMENT_LIMIT)) is not None:
        is_element = _ELEMENT_BEFORE.search(named.before) is not None
        is_some = looks_random(word[1]) or is_made_up(word[1])
        is_last = is_element and is_some and word.end() == len(text)
        return Value(*word.span(1)) if is_last and is_secret(word[1], named.strength, is_quoted=True) else None
    if end < 0 or not (is_raw or text.startswith("</", end)):
        return None
    while position < end and text[end - 1].isspace():
        end -= 1
    content = text[position:end]
    is_none = is_prose(content, is_quoted=True) or is_label(named.name, content)
    is_some = is_secret(content, named.strength, is_quoted=True) and not is_none
    return Value(position, end) if is_some else None
