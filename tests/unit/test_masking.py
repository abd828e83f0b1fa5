"""What leaves a worker carries no secret, and stays what it was otherwise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.worker.masking import build_masker

MASK = "__MASKED__"
masker = build_masker()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("password"), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password: hunter2abc", f"password: {MASK}"),
        ('{"password": "a b\\" c", "x": 1}', f'{{"password": "{MASK}", "x": 1}}'),
        ('{"db_password": 12345}', f'{{"db_password": "{MASK}"}}'),
        ("DB_PASSWORD=foo bar", f"DB_PASSWORD={MASK}"),
        ("dbPassword=xyzabc", f"dbPassword={MASK}"),
        ("'apiKey': 'zzz1'", f"'apiKey': '{MASK}'"),
        ("https://x/y?api_key=abc123&x=1", f"https://x/y?api_key={MASK}&x=1"),
        ('{"a": "{\\"password\\": \\"abc\\"}"}', f'{{"a": "{{\\"password\\": \\"{MASK}\\"}}"}}'),
    ],
)
def test_secrets_are_masked_and_json_stays_json(text: str, masked: str) -> None:
    assert masker.mask(text) == masked
    if text.startswith("{"):
        json.loads(masker.mask(text))


@pytest.mark.parametrize("text", ["bypass: enabled", "password policy: long", "passwords: 3", "keyboard=qwertz", ""])
def test_innocent_text_stays(text: str) -> None:
    assert masker.mask(text) == text


def test_values_under_secret_keys_are_masked_whole() -> None:
    value = {"user": "me", "Password": "x y", "nested": [{"api-key": 5, "note": "password: hunter2"}], "pwd": None}
    assert masker.mask_json(value) == {
        "user": "me",
        "Password": MASK,
        "nested": [{"api-key": MASK, "note": f"password: {MASK}"}],
        "pwd": None,
    }


@given(st.text(alphabet="pasword:=\"' \\{}1\n"))
def test_masking_is_idempotent(text: str) -> None:
    once = masker.mask(text)
    assert masker.mask(once) == once


@given(json_values)
def test_masked_json_is_json_of_the_same_shape(value: object) -> None:
    masked = masker.mask_json(value)
    assert json.loads(json.dumps(masked)) == masked
    assert type(masked) is type(value)


@given(st.integers(0, 300), st.integers(1, 2000))
def test_a_secret_is_found_across_every_window_border(shift: int, length: int) -> None:
    secret = "s3cret" * (length // 6 + 1)
    text = "x" * (64 * 1024 - 150 + shift) + f' password: "{secret}" ' + "y" * 70_000
    masked = masker.mask(text)
    assert "s3cret" not in masked
    assert len(masked) == len(text) - len(secret) + len(MASK)


def test_an_unknown_group_is_an_error_that_lists_the_groups() -> None:
    with pytest.raises(ValueError, match="basic"):
        build_masker(["nonsense"])
    assert build_masker([]).mask("password: hunter2") == "password: hunter2"
