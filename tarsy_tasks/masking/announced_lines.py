"""Secrets in the lines below an announcement: a command that prints one, or a line that introduces one.

Owns which lines these are: `kubectl get secret … | base64 -d`, `Please use the following password:`. The secret is
alone in its line.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.names import STEMS, Strength, rate_name
from tarsy_tasks.masking.rules.lines import is_announced_secret
from tarsy_tasks.masking.search import Search
from tarsy_tasks.masking.values import looks_random

__all__ = ["ANNOUNCEMENTS", "find_announced_lines"]

_COMMAND = (
    r"(?:kubectl|oc|k|k3s)\b[^\n]*\bget[ \t][^\n]*\bsecrets?\b[^\n]*(?:base64[ \t]+(?:-d|-D|--decode)|\{\{?[^\n]*data)"
    r"|vault[ \t]+(?:kv[ \t]+get|read)\b[^\n]*-field"
    r"|(?:gcloud|doctl|scw)\b[^\n]*\bsecrets?[ \t]+versions?[ \t]+access\b"
    r"|gcloud\b[^\n]*print-(?:access|identity)-token"
    r"|aws\b[^\n]*(?:get-secret-value|get-login-password|--with-decryption|get-random-password)[^\n]*"
    r"|az\b[^\n]*(?:keyvault[ \t]+secret[ \t]+show|get-access-token|keys?[ \t]+list|credential[ \t]+show)[^\n]*tsv"
    r"|op[ \t]+read\b|pass[ \t]+(?:show[ \t]+)?[\w./\-]+/[\w./\-]+"
    r"|gopass[ \t]+show|bw[ \t]+get[ \t]+password|chamber[ \t]+read"
    r"|gh[ \t]+auth[ \t]+token|argocd[ \t]+admin[ \t]+initial-password|terraform[ \t]+output[ \t]+-raw"
    r"|openssl[ \t]+rand\b|pwgen\b|apg\b|makepasswd\b|wg[ \t]+gen(?:key|psk)\b|uuidgen[^\n]*token|mkpasswd\b"
    r"|rabbitmqctl[ \t]+eval[^\n]*get_cookie|secrets\.token_\w+\("
    r"|(?:docker|kubectl|podman)\b[^\n]*\b(?:cat|printenv)\b[^\n]*(?:password|passwd|secret|token)"
    r"|(?:sudo[ \t]+)?(?:cat|less|head|tail)[ \t]+[^\n]*(?i:secrets?/|passw(?:or)?d|token|\.key\b)[\w.\-]*"
    r"|(?:echo|printenv)[ \t]+[\"']?\$?\{?\w*(?:PASS|PASSWORD|PASSWD|PWD"
    r"|TOKEN|SECRET|KEY|CREDENTIALS)\w*\}?[\"']?[ \t\r]*"
)
ANNOUNCEMENTS = (
    rf"(?m:(?:^|\")(?:[^\n$#>+%\"]*(?:[$#>%+]|>>>))?[ \t]*(?:sudo[ \t]+)?(?:{_COMMAND})[^\n]*\n)",
    rf"{STEMS}\w*[ \t][^\n]*:[ \t\r]*\n",
    r"\bchpasswd\b[^\n]*\n",
    r"(?m:^)[ \t]*=+[ \t]Data[ \t]=+[ \t\r]*\n",
    r"\bmap[ \t]+\$(?:http|arg|cookie)_\w*(?:key|token|auth|secret)\w*[ \t]+\$\w+[ \t]*\{[ \t\r]*\n",
    r"(?m:^)[ \t]*/?(?:[\w.\-]+/)+[\w.\-]*(?:password|passwd|secret|token|api_?key)[ \t\r]*\n",
)
"""Lines that announce one; the first pattern: by a command."""
_ASKED, _SAID, _CHANGED, _SHOWN, _MAPPED, _KEYED = range(6)

_search = Search(ANNOUNCEMENTS)
_LINES = 5
_MAX_ROWS = 100
_BLANK = re.compile(r"[ \t\r]*(?:\+[ \t][^\n]*)?$")
"""Also trace lines of a shell in between."""
_ALONE = re.compile(r"[ \t]*([\"']?)([^\s\"']{6,})\1[ \t\r]*$")
_WORD = re.compile(r"\S+")
_ACCOUNT = re.compile(r"[ \t]*(?:-[ \t]+)?[\"']?[\w.\-]+:([^\s:\"'][^\s\"']*)[\"']?[ \t\r]*$")
_ROW = re.compile(r"[ \t]*[\w.\-]+[ \t]{2,}(\S+)[ \t\r]*$")
_MAPPING = re.compile(r"[ \t]*[\"']?([^\s\"'{}]{8,})[\"']?[ \t]+[^\s;]+;[ \t\r]*$")
_ROWS = {_CHANGED: _ACCOUNT, _SHOWN: _ROW, _MAPPED: _MAPPING}
_NAME = re.compile(r"[A-Za-z][\w\-]*(?: key| code)?")
_LONGEST = 1024


def find_announced_lines(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right; `projection` is `search.project(text)`."""
    position = 0
    while (found := _search.next(projection, position)) is not None:
        index, start, position = found
        if position - start > _LONGEST * 4:
            continue
        if index in (_ASKED, _KEYED):
            yield from _alone(text, position, is_sure=True)
        elif index == _SAID:
            line_start = text.rfind("\n", max(0, start - _LONGEST), start) + 1
            names = _NAME.findall(text[line_start:position])
            if any(rate_name(name) in (Strength.STRONG, Strength.LIKELY) for name in names):
                yield from _alone(text, position, is_sure=False)
        else:
            yield from _rows(text, position, _ROWS[index])


def _alone(text: str, position: int, *, is_sure: bool) -> Iterator[Edit]:
    """The first line that is not blank, if it is one word, and similar lines below; or several words of one length."""
    for _ in range(_LINES):
        end = _end_of_line(text, position)
        if not _BLANK.match(text, position, end):
            break
        position = end + 1
    for _ in range(_MAX_ROWS):
        end = _end_of_line(text, position)
        words = _words(text, position, end)
        if not words or not all(_is_secret(text[slice(*word)], is_sure=is_sure) for word in words):
            return
        yield from (Edit(*word) for word in words)
        position = end + 1


def _words(text: str, position: int, end: int) -> list[tuple[int, int]]:
    if word := _ALONE.match(text, position, end):
        return [word.span(2)]
    words = [word.span() for word in _WORD.finditer(text, position, end)]
    return words if len({end - start for start, end in words}) == 1 else []


def _is_secret(word: str, *, is_sure: bool) -> bool:
    if word.endswith((":", ",", "{", "[", ";")) or word.startswith(("{", "[", "<", "-", "/", "$")):
        return False
    return is_announced_secret(word) if is_sure else looks_random(word) and is_announced_secret(word)


def _rows(text: str, position: int, pattern: re.Pattern[str]) -> Iterator[Edit]:
    """The values that look like secrets in lines of this kind, until such lines end."""
    is_begun = False
    for count in range(_MAX_ROWS):
        if position >= len(text):
            return
        end = _end_of_line(text, position)
        row = pattern.match(text, position, end)
        if row is None and (is_begun or count >= _LINES):
            return
        if row is not None:
            is_begun = True
            if is_announced_secret(row[1]):
                yield Edit(*row.span(1))
        position = end + 1


def _end_of_line(text: str, position: int) -> int:
    end = text.find("\n", position, position + _LONGEST)
    return min(len(text), position + _LONGEST) if end < 0 else end
