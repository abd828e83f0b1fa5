"""Mutations of texts that models really write: more of the interesting neighbourhood than random characters reach."""

import json
from contextlib import suppress
from typing import Any

import jsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from tarsy_tasks.arguments import read_arguments
from tarsy_tasks.errors import ArgumentsError
from tests.unit.arguments_corpus import ROWS, SCHEMAS

SIGNS = "{}[]\"'`:=,\\\n #/|-&*!é“\u2028\x00"
TEXTS = [row.text for row in ROWS]


@st.composite
def mutations(draw: st.DrawFn) -> str:
    """A text of the corpus, cut, spliced with another, or with characters put in or left out."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        to = draw(st.integers(at, min(len(text), at + 6)))
        other = draw(st.sampled_from(TEXTS))
        text = draw(
            st.sampled_from(
                [
                    text[:at],
                    text[at:],
                    text[:at] + text[to:],
                    text[:at] + draw(st.text(SIGNS, min_size=1, max_size=3)) + text[at:],
                    text[:at] + other,
                    text[:at] + json.dumps(other) + text[to:],
                ]
            )
        )
    return text


@settings(max_examples=1500, deadline=None)
@given(text=mutations(), schema=st.sampled_from([None, *SCHEMAS.values()]))
def test_a_mutated_text_is_arguments_that_fit_or_a_rejection(text: str, schema: dict[str, Any] | None) -> None:
    with suppress(ArgumentsError):
        arguments = read_arguments(text, schema).arguments
        as_json = json.dumps(arguments, allow_nan=False)
        assert json.loads(as_json) == arguments
        assert json.dumps(read_arguments(as_json, schema).arguments) == as_json
        assert schema is None or jsonschema.Draft202012Validator(schema).is_valid(arguments)
