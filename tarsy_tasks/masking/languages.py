"""Secrets behind names in other alphabets, or with accents: `пароль = x`, `密码: x`.

Owns these words. The other searches see only ASCII.
"""

import re
from collections.abc import Iterator

from tarsy_tasks.masking.edits import Edit
from tarsy_tasks.masking.names import Strength
from tarsy_tasks.masking.values import is_secret

__all__ = ["find_in_other_languages", "may_hold_words"]

_WORDS = "пароль|密码|密碼|口令|パスワード|비밀번호|hasło|şifre|jelszó|lösenord|contraseña"
_NAMED = re.compile(rf"(?:{_WORDS})[^\n:=：\"']{{0,30}}[\"']?[ \t]*[:=：][ \t]*([\"']?)([^\s\"']+)\1", re.IGNORECASE)


def may_hold_words(text: str) -> bool:
    """Whether any of them is there."""
    return not text.isascii() and _NAMED.search(text) is not None


def find_in_other_languages(text: str) -> Iterator[Edit]:
    """The secrets of a text, from left to right."""
    if text.isascii():
        return
    for named in _NAMED.finditer(text):
        if is_secret(named[2], Strength.STRONG, is_quoted=bool(named[1])):
            yield Edit(*named.span(2))
