"""What masking makes of what tools answer every day: it leaves the lines of ordinary logs, tables and manifests, and it
takes secrets in forms that are seldom but not strange."""

import html
import json
from collections.abc import Callable
from typing import Any

import pytest

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.masker import build_masker

masker = build_masker()


def test_a_putty_key_is_masked_as_far_as_it_goes() -> None:
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIJ\nAAAAIHmWv1==\n"
    masked = masker.mask(f"Private-Lines: 2\n{key}Private-MAC: 0\nthe end")
    assert masked == f"Private-Lines: 2\n{MASK}\n{MASK}\nPrivate-MAC: 0\nthe end"
    assert masker.mask("Private-Lines: 9999\nPrivate-Lines: 1\nno key, it seems") == (
        "Private-Lines: 9999\nPrivate-Lines: 1\nno key, it seems"
    )
    assert masker.mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        '10.0.0.1 - bob [10/Oct/2026:13:55:36 +0000] "POST /oauth/token HTTP/1.1" 200 512 "-" "curl/8.5.0"',
        '"POST /v1/auth/token HTTP/2.0" 200',
        "POST /password HTTP/1.1",
        "POST /oauth/token a1b2c3d4 12ms",
        "| Setting | Type | Default |\n|---|---|---|\n| password | string | none |\n| token_ttl | duration | 15m |\n",
        "| password | string | none |\n|---|---|---|\n| username | string | x |\n",
        "annotations:\n  checksum/secret: 9b74c9897bac770ffc029102a200c5de7f4f1f9d1c5a8bb0c77c6e7f2d9b3a10\n",
        '{"checksum/secret": "9b74c9897bac770ffc029102a200c5de7f4f1f9d1c5a8bb0c77c6e7f2d9b3a10"}',
        "secret-hash: 9b74c9897bac770ffc029102a200c5de7f4f1f9d",
        'msg="token refreshed" token_type=bearer user=u57 duration=3ms',
        'I1121 10:00:01.1 1 sync.go:12] "Syncing" secret="prod/db-7f3a2" token="" tokens 1523',
        '{"level": "info", "token_count": 17, "max_tokens": 4096}',
    ],
)
def test_ordinary_lines_stay(text: str) -> None:
    assert masker.mask(text) == text


def test_only_the_secret_value_of_a_name_value_list_is_masked() -> None:
    listed = "password    basalt-cliff\nusername    svc\nhost        db1\n"
    masked = f"password    {MASK}\nusername    svc\nhost        db1\n"
    assert masker.mask(listed) == masked
    heading = "====== Data ======\nKey         Value\n---         -----\n"
    assert masker.mask(heading + listed) == heading + masked
    assert masker.mask(f"{heading}password    sandstone\n") == f"{heading}password    {MASK}\n"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ('msg="x" secret="prod/0c6b1c9e-7a3e-4c55-9a3b-2f0c3b7a9f11"', "7a3e"),
        ('client_secret="prod/db-7f3a2"', "7f3a2"),
        ('secret="a1b2c3d4e5f6a7b8c9"', "a1b2c3"),
        ("token_type=bearer api_key=k-77-delta", "delta"),
        ('{"token_count": 1, "access_tokens": ["tk-Aa11bb22cc"], "password": ""}', "tk-Aa"),
        ('GET /x?token=ab12cd34ef HTTP/1.1" secret="" password="x-1"', "ab12"),
    ],
)
def test_secrets_among_ordinary_words_are_masked(text: str, secret: str) -> None:
    assert secret not in masker.mask(text)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"patterns": ["ACME-[0-9]+"]}, "ACME-777030"),
        ({"groups": ["email"]}, "ann@example.com"),
        ({"groups": ["all"]}, "ann@example.com"),
    ],
)
def test_what_is_asked_for_is_masked_in_json_with_secrets_too(options: dict[str, Any], found: str) -> None:
    asked = build_masker(**options)
    document = {"password": "swordfish-91", "x": found, "y": [{"z": f"a {found}\n"}], "n": 1.5}
    expected = {"password": MASK, "x": MASK, "y": [{"z": f"a {MASK}\n"}], "n": 1.5}
    assert json.loads(asked.mask(json.dumps(document))) == expected
    assert asked.mask_json(document) == expected
    assert asked.mask(asked.mask(json.dumps(document))) == asked.mask(json.dumps(document))


def _in_json(value: str, times: int) -> str:
    for _ in range(times):
        value = json.dumps(value)
    return value


@pytest.mark.parametrize(
    "write",
    [
        lambda value: _in_json(value, 2),
        lambda value: _in_json(value, 4),
        lambda value: json.dumps({"a": json.dumps({"b": value})}, indent=1),
        repr,
        html.escape,
        lambda value: value.encode().hex().upper(),
        lambda value: value.replace("\n", "\r\n"),
        lambda value: _in_json(value.replace("\n", "\r\n"), 2),
    ],
)
def test_a_known_secret_is_found_in_any_encoding(write: Callable[[str], str]) -> None:
    known = "pl&nt<ed>/\"kn0wn\" 'x'+ü=z\nand \\more"
    knowing = build_masker(known=KnownSecrets([known]), is_enabled=False)
    masked = knowing.mask(f"it is {write(known)}, is it")
    assert MASK in masked
    assert "kn0wn" not in masked
    assert "6B6E30776E" not in masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (
            '[{"op": "replace", "path": "/spec/password", "value": "swordfish"}]',
            f'[{{"op": "replace", "path": "/spec/password", "value": "{MASK}"}}]',
        ),
        (
            '{"secrets": [{"key": "db", "value": "swordfish-12"}]}',
            f'{{"secrets": [{{"key": "db", "value": "{MASK}"}}]}}',
        ),
        (
            '{"payload": {"data": "c3dvcmRmaXNoLTEy", "dataCrc32c": "123"}}',
            f'{{"payload": {{"data": "{MASK}", "dataCrc32c": "123"}}}}',
        ),
        (
            '{"id": "https://v.vault.azure.net/secrets/db/1", "name": "db", "value": "swordfish"}',
            f'{{"id": "https://v.vault.azure.net/secrets/db/1", "name": "db", "value": "{MASK}"}}',
        ),
        ('{:user "bob" :password "sword fish"}', f'{{:user "bob" :password "{MASK}"}}'),
        ("X-Auth-Key: hunter-two-abc", f"X-Auth-Key: {MASK}"),
        ("define('DB_PASSWORD', 'ham-let');", f"define('DB_PASSWORD', '{MASK}');"),
        ("os.environ.setdefault('DB_PASSWORD', 'ham-let')", f"os.environ.setdefault('DB_PASSWORD', '{MASK}')"),
        ("cn: bob\nuserPassword:: bGRhcC1wdy0yMg==\n", f"cn: bob\nuserPassword:: {MASK}\n"),
        ("password:\n  - swordfish-12\nhost: db\n", f"password:\n  - {MASK}\nhost: db\n"),
        ("password:\n  - |\n    sword\n    fish\nhost: db\n", f"password:\n  - |\n    {MASK}\nhost: db\n"),
        ("tokens:\n- >-\n  a1b2c3d4\n\n- !!str |\n  e5f6g7h8\n", f"tokens:\n- >-\n  {MASK}\n\n- !!str |\n  {MASK}\n"),
        ("+password:\n+  - |\n+    swordfish\n", f"+password:\n+  - |\n+    {MASK}\n"),
        ("? password\n: swordfish\n? host\n: db\n", f"? password\n: {MASK}\n? host\n: db\n"),
        ("- ? 'db.password'\n  : |\n    sword\n    fish\n", f"- ? 'db.password'\n  : |\n    {MASK}\n"),
        ("? password\r\n:\r\n  swordfish-12\r\n", f"? password\r\n:\r\n  {MASK}\r\n"),
        ("Authorization: Basic\r\n\tdXNlcjpw\r\nHost: x\r\n", f"Authorization: Basic\r\n\t{MASK}\r\nHost: x\r\n"),
        ("> authorization: Token\n>  a1b2c3d4\n>  e5f6g7h8\n", f"> authorization: Token\n>  {MASK}\n>  {MASK}\n"),
        ("authorization: bearer\n abcdefghijklmnop\n", f"authorization: bearer\n {MASK}\n"),
        ("Cookie: a=b;\n sid=4f9ab2c7d1e8\n", f"Cookie: a=b;\n sid={MASK}\n"),
        (
            "password:\n  type: x\n\n  value: sword fish\nhost: db\n",
            f"password:\n  type: x\n\n  value: {MASK}\nhost: db\n",
        ),
        ("password:\n  value: |\n    sword\n    fish\nhost: db\n", f"password:\n  value: |\n    {MASK}\nhost: db\n"),
        (" password:\n-  old: ham-let\n+  new: swordfish\n", f" password:\n-  old: {MASK}\n+  new: {MASK}\n"),
        ('password = {\n  value = "sword fish"\n}\n', f'password = {{\n  value = "{MASK}"\n}}\n'),
        ("{'password': {'value': 'swordfish'}, 'x': 1}", f"{{'password': {{'value': '{MASK}'}}, 'x': 1}}"),
        (
            '{"password": {"plain": "swordfish", "old": "ham-let", "hash": "x1"}}',
            f'{{"password": {{"plain": "{MASK}", "old": "{MASK}", "hash": "x1"}}}}',
        ),
    ],
)
def test_rarer_forms_are_masked(text: str, masked: str) -> None:
    assert masker.mask(text) == masked
    assert masker.mask(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "loadConfig :: Text -> IO Config\npassword :: ByteString\n",
        '[{"op": "replace", "path": "/spec/replicas", "value": "three-3"}]',
        '{"secrets": [{"name": "db-credentials"}], "payload": {"data": "c3dvcmRmaXNoLTEy"}}',
        "Password:\nLast login: Mon\n",
        "password:\n  secretKeyRef:\n    name: db\n",
        "password:\n  required\n",
        "password:\n  type: string\n  description: The password\n  minLength: 8\nvalue: swordfish-12\n",
        "password:\n  policy:\n    value: swordfish-12\n",
        '{"properties": {"password": {"type": "string", "description": "The password", "minLength": 8}}}',
        "users (id INTEGER, password: TEXT, nullable)",
        "password:\n  value: ${DB_PASSWORD}\n",
        "password: {\n  value: this.form.password,\n  text: t('password')\n}",
        "password:\n  - |\n    Must be at least 12 characters long\n",
        "Password\n: The password of the user\n",
        "Authorization: Bearer\n  required\n",
        "Authorization: failed\n\tat com.example.Login.check(Login.java:12)\n",
    ],
)
def test_what_resembles_them_stays(text: str) -> None:
    assert masker.mask(text) == text
