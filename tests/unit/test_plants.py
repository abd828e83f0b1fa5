"""The search for planted secrets: however one is written, it is found."""

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest

from tests.plants import find_leaks, know, plant

NAME = "unit test"
SECRET = plant(NAME)
ODD = know("unit test, odd", 'p/ä"s s+w\\örd=&%Ж')


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


WAYS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in JSON": json.dumps,
    "in JSON, not in ASCII": lambda text: json.dumps(text, ensure_ascii=False),
    "in JSON in JSON": lambda text: json.dumps(json.dumps({"a": text})),
    "in an address": lambda text: f"http://x/?a={quote(text, safe='')}",
    "in a form": lambda text: f"a={quote_plus(text)}&b=1",
    "in hexadecimal": lambda text: text.encode().hex(),
    "in base64": encode,
    "in base64, behind one": lambda text: encode(f"a{text}"),
    "in base64, behind two": lambda text: encode(f"ab{text}z"),
    "in base64 for addresses": lambda text: base64.urlsafe_b64encode(f"??>{text}".encode()).decode(),
    "in base64 in JSON in base64": lambda text: encode(json.dumps([{"body": encode(json.dumps({"b": text}))}])),
}


@pytest.mark.parametrize("write", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("name", "secret"), [(NAME, SECRET), ("unit test, odd", ODD)], ids=["plain", "odd"])
def test_a_secret_is_found_in_any_encoding(write: Callable[[str], str], name: str, secret: str) -> None:
    assert find_leaks(f"said: {write(secret)}.") == {name}
    assert find_leaks(f"said: {write(secret)}.".encode()) == {name}


@pytest.mark.parametrize("part", [SECRET[: len(SECRET) // 2], SECRET[len(SECRET) // 2 :]])
def test_half_a_secret_is_one(part: str) -> None:
    assert find_leaks(f"token {part}") == {NAME}


def test_text_without_a_secret_is_not_reported() -> None:
    assert find_leaks(f"{encode('nothing at all, but for long')} {SECRET[:12]} __MASKED__") == set()
    assert find_leaks(SECRET, names=["unit test, odd"]) == set()
