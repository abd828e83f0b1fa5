"""How much of a corpus is masked, and how much too much.

`secrets` and `innocents` were written before the patterns, and these were tuned on them. `validation_*` were written at
the same time and looked at only when the tuning was over.
"""

import json

import pytest

from tarsy_tasks.masking.masker import build_masker
from tests.unit.masking_corpus import Case, load_cases

masker = build_masker()
SECRETS = ("secrets", "validation_secrets")
INNOCENTS = ("innocents", "validation_innocents")


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_masked_in_all_shapes(name: str) -> None:
    cases = load_cases(name)
    assert len(cases) >= 200
    assert len({case.shape for case in cases}) >= 40
    missed = [case for case in cases if any(secret in masker.mask(case.text) for secret in case.secrets)]
    assert len(missed) <= 0.01 * len(cases), _told(missed)


@pytest.mark.parametrize("name", INNOCENTS)
def test_innocent_texts_stay(name: str) -> None:
    cases = load_cases(name)
    assert len(cases) >= 200
    changed = [case for case in cases if masker.mask(case.text) != case.text]
    assert len(changed) <= 0.01 * len(cases), _told(changed)


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_masked_in_json_too_and_it_stays_json(name: str) -> None:
    missed: list[Case] = []
    for case in load_cases(name):
        wrapped = {"content": [{"type": "text", "text": f"{case.text}\n"}], "n": 1.5}
        masked = masker.mask(json.dumps(wrapped))
        assert json.loads(masked)["n"] == 1.5
        missed += [case] if any(secret in masked for secret in case.secrets) else []
    assert len(missed) <= 0.01 * len(load_cases(name)), _told(missed)


@pytest.mark.parametrize("name", [*SECRETS, *INNOCENTS])
def test_what_is_masked_stays_as_it_is(name: str) -> None:
    for case in load_cases(name):
        masked = masker.mask(case.text)
        assert masker.mask(masked) == masked, case.text


@pytest.mark.parametrize("name", [*SECRETS, *INNOCENTS])
def test_json_stays_json(name: str) -> None:
    for case in load_cases(name):
        try:
            json.loads(case.text)
        except ValueError:
            continue
        json.loads(masker.mask(case.text))


def _told(cases: list[Case]) -> str:
    return "\n\n".join(f"{case.shape}: {case.text}\n-> {masker.mask(case.text)}" for case in cases)
