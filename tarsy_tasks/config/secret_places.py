"""The places of secrets in a server's configuration, found by the names of keys and the forms of values.

Owns these places. A name proves more here than in other text: the value of a key `token` is a secret, whatever it looks
like. The names and forms are those of `masking`.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import JsonValue, SecretStr

from tarsy_tasks.config.problems import KeyPath
from tarsy_tasks.config.variables import find_references, has_references, written_text
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.rules.headers import is_header
from tarsy_tasks.masking.rules.tokens import TOKENS

if TYPE_CHECKING:
    from tarsy_tasks.config.servers import ServerConfig

__all__ = [
    "Secret", "contains_secret", "find_exposed", "find_secrets", "find_written", "is_secret_name", "show_secret",
]  # fmt: skip

_RANDOM = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])\S{16,}")
"""The value of an ambiguous name, such as `SORT_KEY`, is a secret only if it looks like this."""
_COUNTED = re.compile(r"(?i)tokens$")
"""`MAX_TOKENS` is a number, `API_TOKENS` may be several secrets."""
_VAGUE = re.compile(r"(?i)(?:^|[-_.])(?:pat|private|sig|signature)$")
"""Names that belong to a secret in a configuration, though not in other text."""
_HARMLESS = re.compile(
    r"""(?xi)
    (?: true | false | yes | no | on | off | none | null | enabled | disabled | basic | bearer | oauth2? | \d{1,4}
      | <[^>]*> | \*+ | x{3,} | (?: ~ | \.{1,2} )? (?:/[\w.@-]+)+ )?
    """
)
"""Empty, a switch, a number, a placeholder, or the path of a file."""
_SCHEME = re.compile(r"(?i)\A\s*(?:bearer|basic|token|apikey|api-key|digest)\s+")
_URL_PASSWORD = re.compile(r"(?i)\b[a-z][a-z0-9+.-]{0,30}://[^\s/?#@:]*:(?P<password>[^\s/?#]*)@")
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
_PAIR = re.compile(r"(?P<name>[A-Za-z_][\w.-]*)(?:=|:(?!//)\s*)(?P<value>.+)", re.DOTALL)
_SEGMENT = re.compile(r"(?=[^/]*[a-z])(?=[^/]*[A-Z])(?=[^/]*[0-9])[A-Za-z0-9_+=~-]{24,}")
_LONG_ENOUGH = 16
_SEARCHED_CHARS = 8192
"""Longer than any credential; some patterns take quadratic time."""


class Secret(NamedTuple):
    """One secret, or a reference at the place of one in a `ServerConfig`. The value, without its surroundings, is never
    to be displayed."""

    at: KeyPath
    value: str

    def __repr__(self) -> str:
        return f"Secret(at={self.at!r})"


def is_secret_name(name: str) -> bool:
    """Whether the value of a key, variable, header, option or parameter with this name is a secret."""
    if _COUNTED.search(name):
        return False
    return is_header(name) or rate_name(name) is not None or _VAGUE.search(name) is not None


def show_secret(value: str) -> str:
    """A secret for display: masked, with its last two characters if it is long enough that they reveal nothing."""
    if not value:
        return "(empty)"
    return "••••" + (value[-2:] if len(value) >= _LONG_ENOUGH and value[-2:].isprintable() else "")


def find_secrets(server: "ServerConfig") -> Iterator[Secret]:
    """The secrets of a server's configuration, including those of references."""
    for kind, texts in (("env", server.env), ("headers", server.headers)):
        for name, text in texts.items():
            yield from _of_named((kind, name), name, text)
    for name, value in server.auth or ():
        if isinstance(value, SecretStr):
            yield Secret(("auth", name), value.get_secret_value())
    yield from _of_arguments(server.args)
    if server.url is not None:
        yield from _of_text(("url",), server.url)


def find_written(server: "ServerConfig") -> Iterator[KeyPath]:
    """The places where the configuration itself contains a secret instead of a reference."""
    from tarsy_tasks.masking.masker import mask_text  # agents do not need it

    seen: set[KeyPath] = set()
    for at, text in find_secrets(server):
        written = written_text(text) if has_references(text) else text
        # Text around a reference is not a secret, unless it has the form of one.
        is_written = _is_default(text, written) or _shape().search(written) if has_references(text) else written
        if is_written and at not in seen:
            seen.add(at)
            yield at
    for at, text in _texts_of(server):
        written = written_text(text)
        if at not in seen and mask_text(written) != written:
            yield at


def contains_secret(name: str, value: JsonValue) -> bool:
    """Whether a value, wherever it is in a configuration, or one within it is a secret instead of a reference.

    Args:
        name: Its key.
    """
    if isinstance(value, dict):
        return any(contains_secret(key, each) for key, each in value.items())
    if isinstance(value, list):
        return any(contains_secret(name, each) for each in value)
    return isinstance(value, str) and next(_of_named((name,), name, written_text(value)), None) is not None


def find_exposed(server: "ServerConfig") -> Iterator[KeyPath]:
    """The arguments that pass a secret on a command line, which every user of the machine can read."""
    places = {at for at, _ in _of_arguments(server.args)}
    for index, text in enumerate(server.args):
        if ("args", index) in places or "${file:" in text or any(map(is_secret_name, find_references(text))):
            yield ("args", index)


def _texts_of(server: "ServerConfig") -> Iterator[tuple[KeyPath, str]]:
    for kind, texts in (("env", server.env), ("headers", server.headers)):
        yield from (((kind, name), text) for name, text in texts.items())
    yield from ((("args", index), text) for index, text in enumerate(server.args))
    yield from ((("auth", name), str(value)) for name, value in server.auth or ())
    if server.url is not None:
        yield ("url",), server.url


def _is_default(text: str, written: str) -> bool:
    """Whether a text is a reference and its default."""
    return f":-{written}}}" in text and _HARMLESS.fullmatch(written) is None


def _is_secret(name: str, value: str) -> bool:
    if not is_secret_name(name) and not _COUNTED.search(name):
        return False
    if _COUNTED.search(name) or (not is_header(name) and rate_name(name) in (None, Strength.FAINT)):
        return has_references(value) or _RANDOM.fullmatch(value) is not None
    return _HARMLESS.fullmatch(value) is None


@cache
def _shape() -> re.Pattern[str]:
    """Secrets that are recognized by their form."""
    tokens = "|".join(chain.from_iterable(TOKENS.values()))
    return re.compile(rf"(?<![A-Za-z0-9])(?:{tokens})|-----BEGIN [A-Z ]*PRIVATE KEY-----")


def _of_named(at: KeyPath, name: str, text: str) -> Iterator[Secret]:
    value = _SCHEME.sub("", text, count=1)
    if _is_secret(name, value):
        yield Secret(at, value)
    else:
        yield from _of_text(at, text)


def _of_text(at: KeyPath, text: str) -> Iterator[Secret]:
    """Secrets that are recognized by their form, whatever their name is."""
    for match in _shape().finditer(text[:_SEARCHED_CHARS]):
        yield Secret(at, text if match[0].startswith("-") else match[0])
    for match in _URL_PASSWORD.finditer(text):
        if _HARMLESS.fullmatch(match["password"]) is None:
            yield Secret(at, match["password"])
            yield Secret(at, unquote(match["password"]))
    if text.startswith(("http://", "https://")):
        yield from _of_url(at, text)


def _of_arguments(args: list[str]) -> Iterator[Secret]:
    named = ""
    for index, text in enumerate(args):
        at: KeyPath = ("args", index)
        option, pair = _OPTION.fullmatch(text), _PAIR.fullmatch(text)
        if option is not None:
            if option["value"] is not None:
                yield from _of_named(at, option["name"], option["value"])
        elif named and is_secret_name(named):
            yield from _of_named(at, named, text)
        elif pair is not None:
            yield from _of_named(at, pair["name"], pair["value"])
        else:
            yield from _of_text(at, text)
        named = option["name"] if option is not None and option["value"] is None else ""


def _of_url(at: KeyPath, url: str) -> Iterator[Secret]:
    try:
        parts = urlsplit(url)
    except ValueError:  # with references it need not be a valid URL
        return
    user, separator, _ = parts.netloc.rpartition("@")[0].partition(":")
    if user and not separator:
        yield Secret(at, user)  # a token instead of a user
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if _is_secret(unquote(name), value):
            yield Secret(at, value)
            yield Secret(at, unquote(value))
    for segment in parts.path.split("/"):
        if _SEGMENT.fullmatch(segment):
            yield Secret(at, segment)
