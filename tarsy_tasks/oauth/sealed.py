"""Texts that only those can read who have the key: AES-256-GCM, with a place that is part of the seal.

Owns the form: `1.KEY.DATA`, where KEY says which key it was, and DATA is nonce and ciphertext in base64. A text that
was copied to another place does not open there: tokens of one server must not be sent to another one.
"""

import hashlib
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any

from tarsy_tasks.errors import ConfigError

__all__ = ["SealError", "Sealer"]

_VERSION = "1"
_NONCE_BYTES = 12


class SealError(Exception):
    """A text cannot be read; the text of this continues a sentence about it."""


class Sealer:
    """Seals with the first key, and opens with any.

    Args:
        keys: 32 bytes each.

    Raises:
        ConfigError: What encrypts is not installed.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise ConfigError(f"stored sign-ins need `pip install 'tarsy-tasks[oauth]'` ({error})") from None
        self._ciphers: dict[str, Any] = {_name(key): AESGCM(key) for key in reversed(keys)}
        self._current = _name(keys[0])

    def seal(self, place: str, text: bytes) -> bytes:
        """A text, for one place."""
        nonce = os.urandom(_NONCE_BYTES)
        data = nonce + self._ciphers[self._current].encrypt(nonce, text, place.encode())
        return f"{_VERSION}.{self._current}.{urlsafe_b64encode(data).decode()}".encode()

    def open(self, place: str, sealed: bytes) -> bytes:
        """What was sealed.

        Raises:
            SealError: It was sealed with another key, or changed since.
        """
        version, _, rest = sealed.decode("ascii", "replace").partition(".")
        name, _, text = rest.partition(".")
        if version != _VERSION or not text:
            raise SealError("is damaged, or of another version")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise SealError("was encrypted with another TARSY_TOKEN_KEY")
        try:
            data = urlsafe_b64decode(text)
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place.encode())
        except Exception:  # cryptography's own, or that of base64
            raise SealError("is damaged") from None


def _name(key: bytes) -> str:
    return hashlib.sha256(b"tarsy token key\0" + key).hexdigest()[:8]
