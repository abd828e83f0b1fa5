"""What holds for every text: masking never fails, keeps JSON, and finds the same secret wherever it lies."""

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.masker import build_masker
from tests.unit.masking_corpus import load_cases

masker = build_masker()
CASES = [case.text for name in ("secrets", "innocents") for case in load_cases(name)]
CUT_OFF = "<<~TEXT"
"""In the case whose here-document does not end: what follows belongs to it, up to a limit."""
NOTICE = "[masked whole"

names = st.sampled_from(["password", "api_key", "note", "data", "kind", "token", "value", "name", "Authorization"])
texts = st.sampled_from(["Secret", "List", "b3BlbiBzZXNhbWU=", "hunter2", "password: hunter2", "", "a\nb"]) | st.text()
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names | st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.text())
def test_every_text_can_be_masked(text: str) -> None:
    assert not masker.mask(text).startswith(NOTICE)


@given(st.text(alphabet="pasword:=\"' \\{}[]1\n,<>-&|#$"))
def test_masking_is_idempotent(text: str) -> None:
    once = masker.mask(text)
    assert masker.mask(once) == once


@given(st.sampled_from(CASES), st.integers(0), st.integers(0))
def test_every_part_of_a_text_can_be_masked(text: str, start: int, end: int) -> None:
    part = text[start % (len(text) + 1) :][: end % (len(text) + 1)]
    assert not masker.mask(part).startswith(NOTICE)


@given(json_values)
def test_masked_json_is_json_of_the_same_shape(value: object) -> None:
    masked = masker.mask_json(value)  # type: ignore[arg-type]
    assert type(masked) is type(value)
    assert json.loads(json.dumps(masked)) == masked
    assert masker.mask_json(masked) == masked


@given(json_values, st.sampled_from([None, 0, 2]), st.booleans())
def test_json_text_stays_json(value: object, indent: int | None, ensure_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    json.loads(masker.mask(text))


@given(
    st.sampled_from([text for text in CASES if CUT_OFF not in text]),
    st.text(alphabet="xy z\n", min_size=1, max_size=30),
)
def test_other_paragraphs_do_not_change_the_masking(text: str, other: str) -> None:
    """A blank line apart, for a cut-off document goes on where a text does."""
    masked = masker.mask(f"{text}\n\n...\n\n{other}")
    assert masked.endswith(other)


@given(st.integers(0, 300), st.integers(1, 2000))
def test_a_secret_is_found_across_every_border(shift: int, length: int) -> None:
    secret = "s3cret" * (length // 6 + 1)
    text = "x" * (16 * 1024 - 150 + shift) + f' password: "{secret}" ' + "y" * 70_000
    masked = masker.mask(text)
    assert "s3cret" not in masked
    assert len(masked) == len(text) - len(secret) + len(MASK)


@given(st.integers(0, 20_000), st.sampled_from(["ghp_", "xoxb-", "eyJhbGciOiJIUzI1NiJ9.eyJ"]))
def test_a_token_is_found_at_every_place_of_a_long_text(place: int, prefix: str) -> None:
    token = prefix + "".join(random.Random(place).choices("abcdefghijkABCDEFGHIJK0123456789", k=60))
    masked = masker.mask(f"{'word ' * (place // 5)}{'x' * (place % 5)} {token} {'word ' * 5000}")
    assert token not in masked
