"""Masking takes time linear in the text, whatever the text: a server may well try to find one for which it does not."""

import json
import time

import pytest

from tarsy_tasks.masking import build_masker

masker = build_masker()
SMALL, LARGE = 10_000, 80_000
ROOM = 4.0
"""Between a linear cost, eight times, and a quadratic one, 64 times, with noise."""

_UNITS = """
{ [ [" {" {"a": password: password=␣ password=" password=\\" token␣ token␣a1␣ pass http://a:1/ http://a:b@ ://a:b ?key=a
bearer␣a1␣ -----BEGIN␣PRIVATE␣KEY-----⏎ -----END␣PRIVATE␣KEY-----⏎ kind:␣Secret⏎ kind:␣Secret⏎data:⏎␣␣a:␣b⏎ data:⏎ -␣ ␣
password␣ password:⏎ a,password⏎ user␣␣password⏎ |␣password␣|␣x␣|⏎ password, Cookie:␣a=b; a=bcdefgh1A; Authorization:␣
Authorization:␣Basic␣x␣ mysql␣-p␣ curl␣-u␣a cGFzc3dvcmQ6IGh1bnRlcjI=␣ name:␣password⏎ <password> "password"> </password>
password:␣|⏎ \x1b[1m password%22%3A%22 \ud800 "password",␣" kind:␣Secret,␣data:␣{ eyJaaaaaa. eyJ-AKIAABCDEFGHIJKLMNOP-
sk- $1$ a:b@ jdbc:oracle:x: \\ " \\n
"""
"""With signs for blanks and line breaks."""
REPEATED = _UNITS.split()


@pytest.mark.parametrize("unit", REPEATED)
def test_the_cost_is_linear(unit: str) -> None:
    def cost_s(length: int) -> float:
        repeated = unit.replace("␣", " ").replace("⏎", "\n")
        text = f'password="{repeated * (length // len(repeated))}'
        began = time.process_time()
        masker.mask(text)
        return time.process_time() - began

    cost_s(SMALL)
    small = max(min(cost_s(SMALL), cost_s(SMALL)), 0.01)
    assert cost_s(LARGE) <= LARGE / SMALL * ROOM * small


def test_deep_nesting_is_no_trouble() -> None:
    text = '{"a":' * 50_000 + '{"password":"hunter2"'
    assert "hunter2" not in masker.mask(text)
    nested = "password: hunter2"
    for _ in range(12):
        nested = json.dumps(nested)
    assert "hunter2" not in masker.mask(nested)
