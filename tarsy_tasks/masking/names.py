"""Which names belong to a secret: `DB_PASSWORD`, `apiKey`, `x-auth-token`, `auth.password`.

Owns the rating of names by the words of `vocabulary`. `values` judges the value itself: a weak name alone proves
nothing, as `token` in `token: expired`.
"""

import re
from enum import IntEnum
from functools import lru_cache

from tarsy_tasks.masking.rules import vocabulary

__all__ = ["STEMS", "Strength", "rate_name"]

_LONGEST = 120


class Strength(IntEnum):
    """When the value of a name is a secret: if it looks long and random, if it looks random, if it is quoted, if it is
    not a plain word, always.
    """

    FAINT = 0
    WEAK = 1
    QUOTED = 2
    LIKELY = 3
    STRONG = 4


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_HEADER_KEY = ("x-auth-key", "x_auth_key")
_OF_A_SECRET = re.compile(r"(?i)checksum/|secret-hash$")
"""Annotations that charts write onto pods, so that they restart when a Secret changes."""

_KEYS = "|".join(sorted(vocabulary.SECRET_KEY_QUALIFIERS | vocabulary.POSSIBLE_SECRET_KEY_QUALIFIERS))
STEMS = (
    rf"(?i:(?:{_KEYS})[ _.-]?key|secret[ _-]id|pass phrase|pass|pwd|pw|psk|secret"
    rf"|token|credential|creds|auth|cookie|jwt|otp|mnemonic|seed|phrase|bearer|csrf|xsrf|_pat"
    r"|(?:t?otp|mfa|recovery|seed|backup|scratch|emergency|rescue)[ _-]?(?:seed|phrase|secret|codes?)"
    r"|sessid|sessionid|dockerc|kennwort|senha"
    r"|contrase.a|mdp|wachtw|haslo)"
)
"""Every name contains one of these, except those that end in an arbitrary `key`; searching is cheaper than rating."""


@lru_cache(maxsize=4096)
def rate_name(name: str) -> Strength | None:
    """How strongly a name suggests that its value is a secret; None: not at all. It may be a key, variable, header,
    column, tag or option, in any spelling, also as a path (`db.password`)."""
    if _OF_A_SECRET.search(name):
        return None
    ascii_name = name[-_LONGEST:].replace("ñ", "n").replace("Ñ", "N")
    words = [word.lower() for word in _WORD.findall(ascii_name)]
    if "".join(words) in vocabulary.WEAK_NAMES:
        return Strength.WEAK
    while words and (words[-1].isdigit() or (len(words) > 1 and words[-1] in vocabulary.IGNORED_SUFFIXES)):
        words.pop()
    if not words:
        return None
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last.endswith("s") and (one := _rate_one(name, last.removesuffix("s"), before)):
        # A plural may be a count or a list of names.
        return Strength.QUOTED if one is Strength.STRONG else Strength.WEAK
    return _rate_one(name, last, before)


def _rate_one(name: str, last: str, before: str) -> Strength | None:
    """The strength of a name that ends in these words."""
    if last in vocabulary.STRONG_NAMES or last.endswith(vocabulary.STRONG_NAME_ENDINGS):
        return Strength.LIKELY if before in vocabulary.ACTION_VERBS else Strength.STRONG
    if last == "key":
        return Strength.STRONG if name.lower().endswith(_HEADER_KEY) else _rate_key(before)
    if last.endswith("secretkey"):
        return Strength.LIKELY
    if last == "pass":
        return Strength.STRONG if before else Strength.QUOTED
    if last.endswith("pass") and last.removesuffix("pass").endswith(vocabulary.PASS_QUALIFIERS):
        return Strength.STRONG
    if last == "pat":
        return Strength.WEAK if before in vocabulary.PAT_QUALIFIERS else None
    if last == "code" and before in vocabulary.CODE_QUALIFIERS:
        return Strength.STRONG
    if (last == "seed" and before in vocabulary.SEED_QUALIFIERS) or (
        last == "phrase" and before in vocabulary.PHRASE_QUALIFIERS
    ):
        return Strength.STRONG
    if last.endswith("token") and (last.removesuffix("token") or before) in vocabulary.NON_SECRET_TOKEN_QUALIFIERS:
        return None
    if last == "token" and before == "client":
        return Strength.FAINT  # of AWS, which is there to make a call only once
    if last == "secret" and before in vocabulary.SECRET_REFERENCE_QUALIFIERS:
        return None
    if last == "secret" and before in vocabulary.STRONG_SECRET_QUALIFIERS:
        return Strength.STRONG
    if last == "seed":
        return Strength.FAINT
    if name.isupper() and before and last in ("token", "secret"):
        return Strength.LIKELY  # of an environment
    is_weak = (
        last in vocabulary.WEAK_NAMES
        or before + last in vocabulary.WEAK_NAMES
        or last.endswith(vocabulary.WEAK_NAME_ENDINGS)
    )
    return Strength.WEAK if is_weak else None


def _rate_key(owner: str) -> Strength | None:
    if owner == "secret":
        return Strength.LIKELY  # in Kubernetes also the key of a Secret: `secretKey: password`
    if owner in vocabulary.SECRET_KEY_QUALIFIERS:
        return Strength.STRONG
    if owner in vocabulary.POSSIBLE_SECRET_KEY_QUALIFIERS:
        return Strength.WEAK
    return None if owner in vocabulary.NON_SECRET_KEY_QUALIFIERS else Strength.FAINT
