"""Masking takes time linear in the text, whatever the text: a server may well try to find one for which it does not."""

import json
import time
from collections.abc import Callable

import pytest

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.masker import build_masker

masker = build_masker()
SMALL, LARGE = 20_000, 80_000
LONG = 20_000_000
LONG_VALUE = 500
"""Longer ones are judged without a look at all of them."""
ROOM = 2.0
"""Between a linear cost, four times, and a quadratic one, 16 times, with noise."""
LEAST_S = 0.001
MUCH_S = 0.2
"""What takes so long need not be measured again: what else the machine does in between hardly counts."""
MUCH = 30.0
"""An odd value may cost more than a plain one, but not as much as one that is tried in all ways."""

_UNITS = """
{ [ [" {" {"a": password: password=␣ password=" password=\\" token␣ token␣a1␣ pass http://a:1/ http://a:b@ ://a:b ?key=a
bearer␣a1␣ -----BEGIN␣PRIVATE␣KEY-----⏎ -----END␣PRIVATE␣KEY-----⏎ kind:␣Secret⏎ kind:␣Secret⏎data:⏎␣␣a:␣b⏎ data:⏎ -␣ ␣
password␣ password:⏎ a,password⏎ user␣␣password⏎ |␣password␣|␣x␣|⏎ password, Cookie:␣a=b; a=bcdefgh1A; Authorization:␣
Authorization:␣Basic␣x␣ mysql␣-p␣ curl␣-u␣a cGFzc3dvcmQ6IGh1bnRlcjI=␣ name:␣password⏎ <password> "password"> </password>
password:␣|⏎ \x1b[1m password%22%3A%22 \ud800 "password",␣" kind:␣Secret,␣data:␣{ eyJaaaaaa. eyJ-AKIAABCDEFGHIJKLMNOP-
sk- $1$ a:b@ jdbc:oracle:x: \\ " \\n
{"a":{"b":[{"c":1},{"token":"a1b2c3d4"},{"d": {"a":{"b":1},"c":[{"d":2}]},"password":1}, {"password":1}, x,password=1,
Private-Lines:␣9999⏎ Private-Lines:␣9999⏎YWJj⏎ Private-MAC:␣
api_key://ghp_Authorizationapi_keyname?xxxx
INSERT␣INTO␣t␣(a,password)␣VALUES␣( ('x','y'),⏎ password=[ tokens:⏎-␣a1b2c3d4⏎ <th>Password</th> <name>password</name>
password␣for␣x:⏎ $␣pass␣a/b⏎ ["mysql", {"type":"random_password", AUTH␣a␣b⏎ user␣a␣on␣ login(a,"b", chpasswd⏎a:b⏎
пароль: value:␣x⏎␣␣name:␣PASSWORD⏎ ⏎|------------------------------sql␣password:␣
tokens:⏎-␣__MASKED__ password==${
type="password"␣a="b"␣ secret␣a␣b␣c␣ password=a␣or␣ --password⏎-␣ curl␣-u␣\\⏎
password:␣a1b2c3d4⏎␣a1b2c3d4⏎ password:␣a1␣b2⏎␣ password:␣!!str␣|⏎␣ password:⏎␣"a␣ password:␣"a␣b⏎␣ password=a1b2c3d4\\⏎
password:⏎-␣|⏎ password:⏎␣-␣|⏎␣␣a1b2⏎ ?␣password⏎:␣a1⏎ ?␣password⏎ password:⏎␣value:␣a1⏎ password:⏎␣value:⏎
password:{value:a1 password:{value:' password=[value=[ Authorization:␣x⏎␣ Authorization:␣Basic⏎␣a=b,⏎
Cookie:␣a⏎␣b=c1d2e3f4⏎ password=<<E⏎ password=<<E⏎␣a⏎ PASSWORD=$(cat␣<<E⏎a1⏎ +password:␣|⏎+␣a1b2c3d4⏎ password:⏎----⏎a1⏎
"""
"""With signs for blanks and line breaks."""
REPEATED = _UNITS.split()


_RUNS = r"""
password=[ a
secret:␣[ _
password␣=␣( Ab
password=[ \"
password="a \"
password="a \
password=foo ␣
password= )
password:␣your_ a
password:␣a ␣|␣a[x]
password:␣ *
password␣is ␣
password␣"a ␣
password( \
--password␣ \
--password⏎␣a:␣ ␣
password" ␣a="\\"
"password":␣ \
Cookie:␣a -
tokens:⏎-␣abc ␣
htpasswd␣- nb
curl␣-u␣ =
<th>password</th><td> ␣
<password ␣a="\"
password:␣a1b2c3d4⏎ ␣a1b2c3d4⏎
password:␣correct␣horse⏎ ␣staple⏎
password:␣"a⏎ ␣a⏎
password:⏎␣"a⏎ ␣a⏎
password=<<E⏎ ␣⏎E1
password=a\⏎ a\⏎
password:␣|⏎ ␣token:␣|⏎
password:⏎ ␣value:␣|⏎
password:⏎ ␣-␣|⏎
password:⏎-␣|⏎ ␣password:⏎␣-␣|⏎
password:⏎ -␣|⏎⏎
password:⏎ ␣value:␣a
password:{ value:{
password:{ value:'
password:⏎ ␣'
?␣password⏎: ␣|⏎
Authorization:␣Basic⏎ ␣a=
Authorization:␣Basic⏎ ␣a=b,⏎
Authorization:⏎ ␣
Cookie:␣a⏎ ␣b=c⏎
password:⏎----⏎ a1⏎
"""
"""Where a text begins, and what goes on and on behind."""
_VALUES = r"""
your_ a
a ␣|␣a[x]
a( .a()
A Aa
x *
{{ {{
<% <
a.b ::c
( a␣
/a /a
"a" ␣||␣a
Bearer␣ a=
[ 'a',
$(a )
-a ␣-a
"""
RUNS = [tuple(line.split()) for line in _RUNS.split("\n") if line]
VALUES = [tuple(line.split()) for line in _VALUES.split("\n") if line]


def cost_s(text: str) -> float:
    began = time.process_time()
    masker.mask(text)
    return time.process_time() - began


def is_linear(build: Callable[[int], str], small: int, large: int) -> bool:
    """Whether a text that is longer costs as much more, in one of a few attempts."""
    few_s = cost_s(build(small))
    if few_s < MUCH_S:
        few_s = max(min(cost_s(build(small)), cost_s(build(small))), LEAST_S)
    return any(cost_s(build(large)) <= large / small * ROOM * few_s for _ in range(3))


def spelled_out(unit: str) -> str:
    return unit.replace("␣", " ").replace("⏎", "\n")


@pytest.mark.parametrize("unit", REPEATED)
def test_the_cost_is_linear(unit: str) -> None:
    repeated = spelled_out(unit)
    assert is_linear(lambda length: f'password="{repeated * (length // len(repeated))}', SMALL, LARGE)


@pytest.mark.parametrize(("begin", "unit"), RUNS)
@pytest.mark.parametrize("end", ["", "~\nend"])
def test_the_cost_of_a_long_run_is_linear(begin: str, unit: str, end: str) -> None:
    begin, unit = spelled_out(begin), spelled_out(unit)
    assert is_linear(lambda length: begin + unit * (length // len(unit)) + end, SMALL // 4, LARGE // 4)


@pytest.mark.parametrize(("begin", "unit"), VALUES)
def test_each_value_costs_about_as_much_as_any_other(begin: str, unit: str) -> None:
    odd = (spelled_out(begin) + spelled_out(unit) * LONG_VALUE)[:LONG_VALUE]
    plain_s = max(cost_s(f"password: {'a1B2c' * (LONG_VALUE // 5)}\n" * 20), LEAST_S)
    for end in ("~", "1"):
        text = f"password: {odd}{end}\n" * 20
        assert any(cost_s(text) <= MUCH * plain_s for _ in range(3))


@pytest.mark.parametrize(
    ("line", "length"),
    [
        ("2026-03-01T10:00:00Z INFO component=api path=/api/v1/items/42 status=200 handled in 17 ms\n", 800_000),
        (
            '{"ts": 1767225600.5, "level": "info", "msg": "handled", "path": "/api/v1/items/42", "status": 200}\n',
            800_000,
        ),
        ('{"env": [{"name": "DB_PASSWORD", "value": "hunter2"}], "status": {"phase": "Running"}}\n', 100_000),
    ],
)
def test_the_cost_of_long_logs_is_linear(line: str, length: int) -> None:
    assert is_linear(lambda length: line * (length // len(line)), length, 4 * length)


@pytest.mark.parametrize(
    "line",
    [
        '10.0.0.1 - bob [10/Oct/2026:13:55:36 +0000] "POST /oauth/token HTTP/1.1" 200 512 "-" "curl/8.5.0"\n',
        'I1121 10:00:00.1       1 sync.go:12] "Syncing" secret="prod/db-7f3a2" token="" version="481516"\n',
        'level=info msg="token refreshed for client" component=auth token_type=bearer user=u57 duration=3ms\n',
        '{"level": "info", "msg": "handled", "token_count": 17, "auth_method": "oidc", "secret_name": "db"}\n',
    ],
)
def test_names_of_secrets_in_every_line_of_a_log_cost_little(line: str) -> None:
    plain = '{"level": "info", "msg": "handled", "items_count": 17, "http_method": "post", "item_name": "db"}\n'
    # With a secret, for where there is none at all the first search is the last.
    few_s = max(min(cost_s(f"password: hunter2\n{plain * 8000}") for _ in range(3)), LEAST_S)
    assert any(cost_s(line * 8000) <= 9 * few_s for _ in range(3))


def test_a_text_of_20_mb_is_masked_up_to_its_end() -> None:
    part = "x" * 990 + "\npassword: hunter2\n" + "nothing to see here\n" * 50_000
    text = part * (LONG // len(part) + 1)
    masked = masker.mask(text)
    assert masked.count(MASK) == text.count("hunter2")
    assert "hunter2" not in masked


def test_deep_nesting_is_no_trouble() -> None:
    text = '{"a":' * 50_000 + '{"password":"hunter2"'
    assert "hunter2" not in masker.mask(text)
    nested = "password: hunter2"
    for _ in range(12):
        nested = json.dumps(nested)
    assert "hunter2" not in masker.mask(nested)
