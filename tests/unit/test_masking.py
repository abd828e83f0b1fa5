"""What masking leaves and what it takes, how it is asked for more, and what it does when it fails."""

import base64
import json
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
import yaml

import tarsy_tasks
from tarsy_tasks.masking import Masker, build_masker
from tarsy_tasks.masking.custom import CustomPatterns
from tarsy_tasks.masking.edits import MASK, Edit
from tarsy_tasks.masking.known_secrets import KnownSecrets
from tarsy_tasks.masking.rules.groups import GROUPS, OPTIONAL

masker = build_masker()
SECRET = "Zx81kQ7vLm02"
WINDOW = 16 * 1024
ENCODED = base64.b64encode(b"open sesame").decode()


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password: hunter2abc", f"password: {MASK}"),
        ('{"password": "a b\\" c", "x": 1}', f'{{"password": "{MASK}", "x": 1}}'),
        ('{"db_password": 12345}', f'{{"db_password": "{MASK}"}}'),
        ("user=bob password=foo host=db", f"user=bob password={MASK} host=db"),
        ("dbPassword=xyzabc", f"dbPassword={MASK}"),
        ("'apiKey': 'zzz1'", f"'apiKey': '{MASK}'"),
        ("https://x/y?api_key=abc123&x=1", f"https://x/y?api_key={MASK}&x=1"),
        ('{"a": "{\\"password\\": \\"abc\\"}"}', f'{{"a": "{{\\"password\\": \\"{MASK}\\"}}"}}'),
        ("redis://:hunter2@cache:6379/0", f"redis://:{MASK}@cache:6379/0"),
        ("Authorization: Bearer abcdef123456", f"Authorization: Bearer {MASK}"),
        ("Cookie: theme=dark; sid=4f9ab2c7d1e8; lang=de", f"Cookie: theme=dark; sid={MASK}; lang=de"),
        ("mysql -u root -phunter2 orders", f"mysql -u root -p{MASK} orders"),
        (
            f"tokens: [\n  # don't use\n  # can't\n  '{SECRET}'\n]",
            f"tokens: [\n  # don't use\n  # can't\n  '{MASK}'\n]",
        ),
        ('{"token": {"enum": ["none", "kP9xZq2LmV7rT4wB"]}}', f'{{"token": {{"enum": ["none", "{MASK}"]}}}}'),
        ("<password>hunter2</password>", f"<password>{MASK}</password>"),
        (f'if (password === process.env.PW || "{SECRET}")', f'if (password === process.env.PW || "{MASK}")'),
        ("- name: DB_PASSWORD\n  value: hunter2\n", f"- name: DB_PASSWORD\n  value: {MASK}\n"),
        ("user,password\nbob,hunter2\n", f"user,password\nbob,{MASK}\n"),
        ("USER   PASSWORD\nbob    hunter2\n", f"USER   PASSWORD\nbob    {MASK}\n"),
        ("password: |\n  one\n  two\nhost: db", f"password: |\n  {MASK}\nhost: db"),
    ],
)
def test_only_the_secret_goes_and_the_text_keeps_its_form(text: str, masked: str) -> None:
    assert masker.mask(text) == masked


@pytest.mark.parametrize("text", ["bypass: enabled", "password policy: long", "passwords: 3", "keyboard=qwertz", ""])
def test_innocent_text_stays(text: str) -> None:
    assert masker.mask(text) == text


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "Secret", "data": {"a": ENCODED}, "metadata": {"name": "db"}},
        {"kind": "List", "items": [{"kind": "Secret", "stringData": {"a": "open sesame"}}, {"kind": "Pod"}]},
        {"kind": "SecretList", "items": [{"data": {"a": ENCODED}}, {"stringData": {"b": "open sesame"}}]},
        [{"data": {"a": ENCODED}, "kind": "Secret"}],
        {"type": "MODIFIED", "object": {"kind": "Secret", "data": {"nested": {"a": [ENCODED, "open sesame"]}}}},
        {
            "kind": "Secret",
            "metadata": {"annotations": {"last": json.dumps({"kind": "Secret", "stringData": {"a": "open sesame"}})}},
        },
    ],
)
@pytest.mark.parametrize("form", ["json", "indented", "yaml", "cut", "in a string", "as a program prints it"])
def test_the_data_of_a_kubernetes_secret_is_masked_in_every_form(document: Any, form: str) -> None:
    match form:
        case "json":
            text = json.dumps(document)
        case "indented":
            text = json.dumps(document, indent=4, sort_keys=True)
        case "yaml":
            text = yaml.safe_dump(document)
        case "cut":
            text = json.dumps(document)[:-2]
        case "in a string":
            text = json.dumps({"stdout": f"$ kubectl get secret\n{json.dumps(document)}\n"})
        case _:
            text = str(document)
    masked = masker.mask(text)
    assert ENCODED not in masked
    assert "open sesame" not in masked
    if form in ("json", "indented", "in a string"):
        assert _keys(json.loads(masked)) == _keys(json.loads(text))
    elif form == "yaml":
        assert type(yaml.safe_load(masked)) is type(document)


def _keys(value: Any) -> Any:
    """The form of a JSON value, without what it says."""
    if isinstance(value, dict):
        return {key: _keys(each) for key, each in value.items()}
    return [_keys(each) for each in value] if isinstance(value, list) else None


def test_what_is_no_secret_of_a_list_stays() -> None:
    config_map = {"kind": "ConfigMap", "data": {"color": "blue", "nginx.conf": "server { listen 80; }"}}
    secret = {"kind": "Secret", "data": {"a": ENCODED}}
    masked = masker.mask(json.dumps({"kind": "List", "items": [config_map, secret]}))
    assert json.loads(masked)["items"] == [config_map, {"kind": "Secret", "data": {"a": MASK}}]


def test_a_document_without_secrets_keeps_every_character() -> None:
    text = '{ "a" : 1.50, "b":[ 1e3 ,null],\n\t"secret": {"name": "db"}, "nextToken": "eyJ2IjoxfQ==", "c": "\\u00e9" }'
    assert masker.mask(text) == text


def test_values_under_secret_names_are_masked_whole() -> None:
    value = {
        "user": "me",
        "Password": "x y",
        "nested": [{"api-key": 5, "note": "password: hunter2"}],
        "pwd": None,
        "headers": {"Authorization": ["Bearer abcdef123456"]},
        "args": ["--token", "hunter2", "--verbose"],
    }
    assert masker.mask_json(value) == {
        "user": "me",
        "Password": MASK,
        "nested": [{"api-key": MASK, "note": f"password: {MASK}"}],
        "pwd": None,
        "headers": {"Authorization": [f"Bearer {MASK}"]},
        "args": ["--token", MASK, "--verbose"],
    }


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "value",
    [
        {"args": ["--token", SECRET]},
        {"env": [{"name": "DB_PASSWORD", "value": SECRET}]},
        {"passwords": {"root": SECRET}},
        {"passwords": [[SECRET]]},
        {"password": {"value": SECRET}},
        {"kind": "Secret", "data": {"a": {"b": [SECRET]}}},
        {"items": [{"data": {"a": SECRET}}], "kind": "SecretList"},
        {"note": f"password: {SECRET}"},
    ],
)
def test_a_secret_is_found_between_long_stretches_that_have_none(value: Any, indent: int | None) -> None:
    """Which are not read, but skipped."""
    innocent = {"status": {"phase": "Running", "hosts": [{"ip": "10.0.0.1", "ports": [80, 443]}] * 50}}
    inside = {
        "before": innocent,
        "it": [innocent, {"a": innocent, **value, "z": innocent}, innocent],
        "after": innocent,
    }
    masked = masker.mask(json.dumps(inside, indent=indent))
    assert SECRET not in masked
    assert masked.count(MASK) == 1
    assert _keys(json.loads(masked)) == _keys(inside)
    assert json.loads(masked)["after"] == innocent


def test_numbers_of_any_size_and_half_characters_survive() -> None:
    value = {"n": 10**40, "f": 1.5e300, "half": "\ud800", "password": "hunter2"}
    assert masker.mask_json(value) == {**value, "password": MASK}


def test_base64_of_a_text_stays_base64_of_the_rest() -> None:
    encoded = base64.b64encode(b"user: bob\npassword: hunter2\n").decode()
    masked = masker.mask(f"file: {encoded}!")
    assert base64.b64decode(masked[6:-1]) == f"user: bob\npassword: {MASK}\n".encode()
    assert masker.mask_base64(encoded) == masked[6:-1]
    image = base64.b64encode(bytes(range(256))).decode()
    assert masker.mask_base64(image) == image


def test_of_a_picture_that_holds_a_known_secret_nothing_is_left() -> None:
    knowing = Masker(known=KnownSecrets(["s3cr3t-Value-1"]))
    for before in (b"\xff", b"\xff\xfe", b"\xff\xfe\xfd"):
        assert knowing.mask_base64(base64.b64encode(before + b"s3cr3t-Value-1\x00").decode()) == ""
    picture = base64.b64encode(bytes(range(256))).decode()
    assert knowing.mask_base64(picture) == picture


def test_a_masked_yaml_text_is_still_yaml() -> None:
    text = "db:\n  password: hunter2\n  url: postgres://u:hunter2@h/d\n  keys: {api_key: 'abc123'}\n"
    assert yaml.safe_load(masker.mask(text)) == {
        "db": {"password": MASK, "url": f"postgres://u:{MASK}@h/d", "keys": {"api_key": MASK}}
    }


@pytest.mark.parametrize("secret", ["s3cr3t-Value", "päss/wörd: 42", 'qu"ote\\d value'])
@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda secret: quote(secret, safe=""),
        lambda secret: base64.b64encode(secret.encode()).decode(),
        lambda secret: base64.b64encode(f"user:{secret}".encode()).decode(),
        lambda secret: base64.urlsafe_b64encode(f"ab{secret}c".encode()).decode(),
        lambda secret: json.dumps(secret),
        lambda secret: secret.encode().hex(),
    ],
    ids=["plain", "url", "base64", "in base64", "in base64 for urls", "json", "hex"],
)
def test_known_values_are_masked_in_any_encoding(secret: str, form: Any) -> None:
    known = KnownSecrets()
    text = f"it says {form(secret)} here"
    before = build_masker(known=known)
    known.add([secret])
    for each in (before, build_masker(known=known, is_enabled=False)):
        masked = each.mask(text)
        assert masked != text
        assert MASK in masked
        assert masked.startswith("it says ")
        assert masked.endswith(" here")


def test_known_values_that_stand_everywhere_are_left_alone() -> None:
    known = KnownSecrets(["", "abc", "postgres", "pass42"])
    text = "image postgres:16, abc, pass421, a pass42"
    assert build_masker(known=known).mask(text) == f"image postgres:16, abc, pass421, a {MASK}"


def test_a_known_value_in_json_leaves_json() -> None:
    each = build_masker(known=KnownSecrets(["12345678", 'a"b\\c-defg']))
    masked = each.mask('{"n": 12345678, "s": "x 12345678 y", "q": "a\\"b\\\\c-defg", "12345678": [1.0, 12345678]}')
    assert json.loads(masked) == {"n": MASK, "s": f"x {MASK} y", "q": MASK, MASK: [1.0, MASK]}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_adds_and_never_takes_away(group: str) -> None:
    assert build_masker([group]).mask("password: hunter2") == f"password: {MASK}"
    assert build_masker([]).mask("password: hunter2") == f"password: {MASK}"


@pytest.mark.parametrize(
    ("name", "text", "masked"),
    [
        ("email", "from bob@example.com", f"from {MASK}"),
        (
            "certificate",
            "-----BEGIN CERTIFICATE-----\nMIIBxx\n-----END",
            f"-----BEGIN CERTIFICATE-----\n{MASK}\n-----END",
        ),
        ("certificate_authority_data", "certificate-authority-data: LS0tLS1C", f"certificate-authority-data: {MASK}"),
        ("base64_secret", "x RkFLRS1CQVNFNjQtVEhJUw== y", f"x {MASK} y"),
        ("base64_short", "x: dGVzdA==", f"x: {MASK}"),
    ],
)
def test_optional_patterns_are_masked_on_demand(name: str, text: str, masked: str) -> None:
    assert masker.mask(text) == text
    for groups in ([name], ["all"]):
        assert build_masker(groups).mask(text) == masked


def test_all_is_a_group_of_all_and_leaves_checksums_and_paths() -> None:
    assert set(GROUPS["all"]) >= set(OPTIONAL)
    text = "commit 4f9ab2c7d1e84f9ab2c7d1e84f9ab2c7d1e84f9a in /usr/lib/python3/dist-packages/yaml"
    assert build_masker(["all"]).mask(text) == text


def test_an_unknown_group_is_an_error_that_lists_the_groups() -> None:
    with pytest.raises(ValueError, match="basic"):
        build_masker(["nonsense"])


@pytest.mark.parametrize(
    ("pattern", "text", "masked"),
    [
        (r"CASE-\d+", "see CASE-42 and CASE-43", f"see {MASK} and {MASK}"),
        (r"ssn (\d{3}-\d\d)", "ssn 123-45", f"ssn {MASK}"),
        (r"ssn (\d{3}-\d\d)", '{"a": "x ssn 123-45", "b": 1}', f'{{"a": "x ssn {MASK}", "b": 1}}'),
        (r"\b\d{8}\b", '{"id": 12345678, "n": 1}', f'{{"id": "{MASK}", "n": 1}}'),
        (r'"id".*', '{"id": 12345678, "n": 1}', f'{{"{MASK}": "{MASK}", "{MASK}": "{MASK}"}}'),
        (r"(?m)^line (\w+)$", '{"t": "line one\\nline two"}', f'{{"t": "line {MASK}\\nline {MASK}"}}'),
        (r"größe \d+", "größe 42 ✓", f"{MASK} ✓"),
    ],
)
def test_patterns_of_ones_own_are_masked_and_json_stays_json(pattern: str, text: str, masked: str) -> None:
    assert tarsy_tasks.mask_text(text, patterns=[pattern]) == masked


@pytest.mark.parametrize(
    ("pattern", "text", "masked"),
    [
        ("(?m)^customer: (.*)$", "customer: Bob, card 4111, password=hunter2", f"customer: {MASK}"),
        ("[A-Z]{4,}|hunter.*", f"x {MASK}", f"x {MASK}"),
        ("[A-Z]{4,}__ [a-z]+", f"x {MASK} beta", f"x {MASK}{MASK}"),
        ("[a-z]+ __[A-Z]{3}", f"alpha {MASK}", f"{MASK}{MASK}"),
    ],
)
def test_patterns_of_ones_own_take_masks_in_and_leave_them_alone(pattern: str, text: str, masked: str) -> None:
    assert tarsy_tasks.mask_text(text, patterns=[pattern]) == masked
    assert tarsy_tasks.mask_text(masked, patterns=[pattern]) == masked


@pytest.mark.parametrize(
    ("pattern", "letters", "length"), [("a.*z|a", "a", 200_000), ("(?:[ab]{0,9}a){40}z", "ab", 1_000_000)]
)
def test_custom_patterns_that_take_too_long_mask_the_whole_text(pattern: str, letters: str, length: int) -> None:
    text = "".join(random.Random(3).choices(letters, k=length))
    assert tarsy_tasks.mask_text(text, patterns=[pattern]).startswith("[masked whole: ")


@pytest.mark.parametrize("pattern", ["(", "(?=x)y", r"(a)\1", "a*", "", "x{1,100000}", "\ud800", "(a?b?){600}z"])
def test_an_invalid_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"^(not a valid|the pattern) "):
        build_masker(patterns=[pattern])


def test_text_is_masked_for_agents_as_for_workers() -> None:
    assert tarsy_tasks.mask_text("password: hunter2") == f"password: {MASK}"
    assert tarsy_tasks.mask_text("a@example.com", groups=["email"]) == MASK
    with pytest.raises(ValueError, match="unknown masking group 'nonsense'; use one of"):
        tarsy_tasks.mask_text("x", groups=["nonsense"])


class _Broken(CustomPatterns):
    def find(self, text: str) -> Iterator[Edit]:
        raise RuntimeError("password: hunter2")


def test_what_cannot_be_masked_is_replaced_by_a_notice() -> None:
    broken = Masker(_Broken(["x"]))
    for masked in (broken.mask("hunter2"), broken.mask_json({"a": "hunter2"}), broken.mask_json(["hunter2"])):
        assert masked == "[masked whole: this text could not be searched for secrets]"
    assert broken.mask_base64(base64.b64encode(b"hunter2").decode()) == ""


@pytest.mark.parametrize("depth", [1, 5, 30])
def test_a_secret_is_found_in_texts_in_texts(depth: int) -> None:
    text = "password: hunter2xyz"
    for _ in range(depth):
        text = json.dumps({"a": text}) if len(text) < 100_000 else text
    masked = masker.mask(text)
    assert "hunter2xyz" not in masked
    json.loads(masked)


def test_a_masker_that_is_off_masks_nothing_but_known_values() -> None:
    off = build_masker(is_enabled=False, known=KnownSecrets(["s3cr3t-value"]))
    assert off.mask("password: hunter2, s3cr3t-value") == f"password: hunter2, {MASK}"


@pytest.mark.parametrize(
    "text",
    [
        f' password: "{SECRET}" ',
        f" DB_PASSWORD={SECRET} ",
        f' {{"kind": "Secret", "data": {{"a": "{SECRET}"}}}} ',
        f" ghp_{SECRET * 3} ",
        f" postgres://app:{SECRET}@db/orders ",
        f"\n-----BEGIN PRIVATE KEY-----\n{SECRET * 4}\n-----END PRIVATE KEY-----\n",
        f" mysql -u root -p{SECRET} ",
        f" {base64.b64encode(f'password: {SECRET}'.encode()).decode()} ",
    ],
)
def test_a_secret_is_found_wherever_a_window_of_the_search_ends(text: str) -> None:
    hidden = (SECRET[:4], SECRET[-4:], base64.b64encode(f"password: {SECRET}".encode()).decode()[16:])
    for place in range(WINDOW - len(text) - 2, WINDOW + 2):
        masked = masker.mask(f"{'word ' * (place // 5)}{'-' * (place % 5)}{text}{'word ' * 2000}")
        assert not any(each in masked for each in hidden), place


@pytest.mark.parametrize("text", ["x,api_key={},y=1", 'x,password="{}', "token={}"])
@pytest.mark.parametrize("length", [4000, 4096, 5000, 100_000])
def test_a_value_of_any_length_is_masked_up_to_its_end(text: str, length: int) -> None:
    value = "Zx81kQ7v" * (length // 8)
    assert masker.mask(text.format(value)) == text.format(MASK)


def test_public_keys_of_ssh_are_masked_on_demand_only() -> None:
    line = f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'Xy9' * 14}z bob@laptop"
    assert build_masker().mask(line) == line
    assert build_masker(["ssh_key"]).mask(line) == f"ssh-ed25519 {MASK} bob@laptop"
    assert build_masker(["security"]).mask(line) == f"ssh-ed25519 {MASK} bob@laptop"
