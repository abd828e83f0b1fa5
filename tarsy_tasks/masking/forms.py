"""Secrets that are recognized by their form, or by the text directly around them.

Owns the table of forms besides those of providers (`tokens`): credentials in headers and URLs, password hashes, ssh
keys. One search finds them all. Secrets with a name, or on several lines, are found elsewhere.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.rules.lines import ANNOUNCED, JUDGES, VALUE_BEFORE_NAME, is_announced_secret
from tarsy_tasks.masking.rules.tokens import TOKENS
from tarsy_tasks.masking.rules.vocabulary import OTHER_SUBJECTS
from tarsy_tasks.masking.search import Search
from tarsy_tasks.masking.values import is_made_up, is_metavariable, is_placeholder, is_secret, is_uuid, looks_random

__all__ = ["FORMS", "LINE_FORMS", "find_forms", "find_in_lines"]

Span: TypeAlias = tuple[int, int]
_ADDRESS_LIMIT = 512
_HOST = re.compile(r"@(?:\[[0-9A-Fa-f:.%]+\]|[\w.\-%${}]+)(?::\d{1,5})?(?![\w@])")
_PORT = re.compile(r"\d{1,5}(?![^/,?#\s\"'<>)])")
_ACCOUNT_LIMIT = 160
_ACCOUNT = re.compile(r"[\w.\-]:([^\s:@/\"'<>]+)$")
_NAME_BELOW = re.compile(r"\\*[\"']?[ \t]*\r?\n[ \t]+[\"']?(?:name|key)[\"']?:[ \t]*[\"']?([\w.\-]+)")
_CHANGED = re.compile(r"(?:\\*\"[ \t]*->[ \t]*\\*\"|[\"'`]?[ \t]+to[ \t]+[\"'`]?)([^\s\"'`\\]+)")
"""`value = "x" -> "y"`, in a Terraform plan; `from x to y`."""
_FIELD = re.compile(r"[a-z][a-z_.]*=[^=]")
_END_OF_ADDRESS = re.compile(r"[\s\"'<>`\\]")


def _all_of_it(text: str, start: int, end: int) -> Span | None:
    return None if is_placeholder(text[start:end]) else (start, end)


def _credentials(text: str, start: int, end: int) -> Span | None:
    """Base64 of `user:password`."""
    try:
        decoded = base64.b64decode(text[start:end] + "=" * (-(end - start) % 4), b"-_" if "_" in text else None)
    except (binascii.Error, ValueError):
        return None
    user, colon, password = decoded.decode("utf-8", "replace").partition(":")
    is_text = user.isprintable() and password.isprintable() and "\ufffd" not in password
    return (start, end) if colon and is_text else None


def _bearer(text: str, start: int, end: int) -> Span | None:
    is_token = is_secret(text[start:end], Strength.WEAK) and not _FIELD.match(text, start, end)
    return (start, end) if is_token else None


def _quoted(text: str, start: int, end: int) -> Span | None:
    said = text[start:end]
    return (start, end) if is_secret(said, Strength.STRONG, is_quoted=True) and not is_metavariable(said) else None


def _value_before_name(text: str, start: int, end: int) -> Span | None:
    """Of an entry whose name is in the line below."""
    name = _NAME_BELOW.match(text, end)
    strength = rate_name(name[1]) if name else None
    value = text[start:end].strip("\"'")
    if strength is None or not is_secret(value, strength, is_quoted=True):
        return None
    return text.index(value, start), text.index(value, start) + len(value)


def _announced(text: str, start: int, end: int) -> Span | None:
    """At the end of a sentence about the secret, but not about its owner."""
    before = text[max(0, start - 60) : start].rstrip(" \t:\"'`").rpartition(" ")[2].lower()
    said = text[start:end]
    is_other = before.strip("()") in OTHER_SUBJECTS or not looks_random(said) or is_uuid(said)
    return None if is_other else _quoted(text, start, end)


def _judged(judge: Callable[[str], bool]) -> Callable[[str, int, int], Span | None]:
    return lambda text, start, end: (start, end) if judge(text[start:end]) else None


_made_up, _random = _judged(is_made_up), _judged(looks_random)


def _password_of_address(text: str, start: int, _: int) -> Span | None:
    """Up to the @ before the host; a password may also contain an @, though it should not."""
    if _PORT.match(text, start):
        return None
    stop = _END_OF_ADDRESS.search(text, start, start + _ADDRESS_LIMIT)
    host = _HOST.search(text, start, stop.start() if stop else start + _ADDRESS_LIMIT)
    if host is None or not is_secret(text[start : host.start()], Strength.STRONG, is_quoted=True):
        return None
    return start, host.start()


def _password_before(text: str, start: int, _: int) -> Span | None:
    account = _ACCOUNT.search(text, max(0, start - _ACCOUNT_LIMIT), start)
    return account.span(1) if account else None


def _is_masked(found: str) -> bool:
    """Whether it contains a mask, and otherwise nothing that looks like a secret."""
    return MASK in found and not is_secret(found, Strength.WEAK)


class Form(NamedTuple):
    """One form: a name for people, a pattern as for `Search`, of whose match only the group is the secret, and what
    gives the exact span of the secret, or None if it is not one."""

    name: str
    pattern: str
    measure: Callable[[str, int, int], Span | None] = _all_of_it


_WORD = r"[\w.\-]+"

FORMS = (
    *(Form(name, rf"\b(?:{pattern})") for name, (pattern,) in TOKENS.items()),
    Form("bearer", r"(?i:\bbearer)(?:[ \t]+|%20)([\w.~+/=:\-]{8,})", _bearer),
    Form("basic", r"(?i:\bbasic)(?:[ \t]+|%20)([A-Za-z0-9+/_\-]{6,}={0,2})", _credentials),
    Form("password in an address", r"://[^\s/@:\"'<>`|?#]*:([^\s\"'<>`@])", _password_of_address),
    Form("token in an address", r"://([\w.~\-]{20,})@", _random),
    Form("MySQL account", r"(@)(?:(?:tcp|unix|udp)\(|\([\w.\-]+:\d)", _password_before),
    Form("Oracle account", rf"jdbc:oracle:\w+:{_WORD}/([^\s@\"'/]+)@"),
    Form(
        "parameter of an address",
        r"[?&;#](?i:sig|signature|x-(?:amz|goog|oss)-(?:signature|security-token)|code|sid|hmac|ticket|key|appid|appkey)"
        r"=([^\s&#?\"'<>\\)]{8,})",
        _random,
    ),
    Form("Slack hook", r"hooks\.slack\.com/(?:services|workflows|triggers)/([\w/\-]{16,})"),
    Form("Discord hook", r"discord(?:app)?\.com/api(?:/v\d+)?/webhooks/\d+/([\w\-]{16,})"),
    Form("Teams hook", r"\.office\.com/webhookb?2?/([\w@\-/]{16,})"),
    Form("Zapier hook", r"hooks\.zapier\.com/hooks/catch/([\w/\-]{12,})"),
    Form("Telegram address", r"api\.telegram\.org/bot(\d+:[\w\-]{16,})"),
    Form("crypt", r"\$2[abxy]?\$\d\d\$([./A-Za-z0-9]{22,})"),
    Form("Kerberos", r"\$krb5\w*\$([^\s\"']{16,})"),
    Form("crypt", r"\$(?:apr1|1|5|6|7|8|9|y|gy|md5|sha1|scrypt|argon2\w*)\$([./A-Za-z0-9=,+$\-]{16,})"),
    Form("LDAP hash", r"\{(?:SSHA|SHA|SMD5|CRYPT|PBKDF2|ARGON2)[0-9]*\}([A-Za-z0-9+/=$.,]{12,})"),
    Form("Django hash", r"\bpbkdf2[_:]sha\d+[$:]([A-Za-z0-9+/=$:.]{16,})"),
    Form("SCRAM", r"SCRAM-SHA-\d+\$(\d+:[A-Za-z0-9+/=$:]{20,})"),
    Form(
        "SQL",
        r"(?i:\bidentified[ \t]+(?:with[ \t]+[\w\"'`]+[ \t]+)?(?:by|as)[ \t]+(?:password[ \t]+)?)"
        r"[\"']([^\"'\n]+)[\"']",
        _quoted,
    ),
    Form("SQL, bare", r"(?i:\bidentified[ \t]+by[ \t]+)([^\s\"';,]+)", _made_up),
    Form("old Vault token", r"\bs\.[A-Za-z0-9]{24}\b", _random),
    Form(
        "pgpass",
        r"(?m:(?:^|\")[ \t]*[\w.*\-]+:(?:\d{2,5}|\*):[\w.*\-]+:[\w.*@\-]+:([^\s:\"\\]{8,})(?:[\r\"\\]|$))",
        _random,
    ),
)

LINE_FORMS = (
    *(
        Form(name, pattern, _judged(judge))
        for table, judge in JUDGES
        for name, patterns in table.items()
        for pattern in patterns
    ),
    Form("value before its name", VALUE_BEFORE_NAME, _value_before_name),
    Form("announced in its line", ANNOUNCED, _announced),
)
"""Signs in the rest of a line: the secret may be behind other values."""

_search = Search([form.pattern for form in FORMS])
_line_search = Search([form.pattern for form in LINE_FORMS])


def find_forms(text: str, projection: bytes) -> Iterator[Edit]:
    """The secrets of a text, from left to right; `projection` is `search.project(text)`."""
    position = 0
    while (found := _search.next(projection, position)) is not None:
        index, start, position = found
        span = FORMS[index].measure(text, start, position)
        if span is None or _is_masked(text[slice(*span)]):
            position = max(start, position if index < len(TOKENS) else start + 1)
        else:
            yield Edit(*span)
            position = max(start + 1, span[1])


def find_in_lines(text: str, projection: bytes) -> Iterator[Edit]:
    """The same for those of `LINE_FORMS`."""
    position = 0
    while (found := _line_search.next(projection, position)) is not None:
        index, start, end = found
        span = LINE_FORMS[index].measure(text, start, end)
        if span is None or _is_masked(text[slice(*span)]):
            position = max(start, position + 1)  # after a text that is not a secret, search from the next character
        else:
            yield Edit(*span)
            position = max(start + 1, span[1])
            if (changed := _CHANGED.match(text, span[1])) is not None and is_announced_secret(changed[1]):
                yield Edit(*changed.span(1))
                position = changed.end()
