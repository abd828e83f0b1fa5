"""The client of an authorization server: its id, and how it authenticates.

Owns the four methods of client authentication. A signed assertion (RFC 7523) is for one authorization server and a few
minutes, so the one who receives it cannot be this client elsewhere.
"""

import time
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote
from uuid import uuid4

from pydantic import SecretStr

from tarsy_tasks.oauth.endpoint import CredentialsError

__all__ = ["Client", "ClientMethod"]

ClientMethod = Literal["none", "basic", "post", "private_key_jwt"]

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_S = 120
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


@dataclass(frozen=True)
class Client:
    """A client of an authorization server.

    Attributes:
        method: How it authenticates; `none`: it cannot, as a program on a person's machine.
        secret: For `basic` and `post`.
        private_key: For `private_key_jwt`, as PEM.
        key_id: What the authorization server calls that key, if it knows several.
        algorithm: Of the signature; None: as the key has it.
    """

    client_id: str
    method: ClientMethod = "none"
    secret: SecretStr | None = field(default=None, repr=False)
    private_key: SecretStr | None = field(default=None, repr=False)
    key_id: str | None = None
    algorithm: str | None = None

    def authenticate(self, form: Mapping[str, str], audience: str) -> tuple[dict[str, str], dict[str, str]]:
        """The form and the headers of a request in the name of this client.

        Args:
            audience: The issuer, or the token endpoint if the issuer is not known.

        Raises:
            CredentialsError: The private key cannot be used.
        """
        headers = {"Accept": "application/json"}
        own = {"client_id": self.client_id}
        match self.method:
            case "none":
                pass
            case "basic":
                pair = f"{quote(self.client_id, safe='')}:{quote(_reveal(self.secret), safe='')}"
                headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
                own = {}
            case "post":
                own["client_secret"] = _reveal(self.secret)
            case "private_key_jwt":
                own |= {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": self._sign(audience)}
        return {**form, **own}, headers

    def _sign(self, audience: str) -> str:
        key, algorithm = _load_key(_reveal(self.private_key))
        import jwt

        now = int(time.time())
        claims = {"iss": self.client_id, "sub": self.client_id, "aud": audience, "jti": uuid4().hex, "iat": now}
        claims["exp"] = now + _ASSERTION_S
        try:
            headers = {} if self.key_id is None else {"kid": self.key_id}
            return jwt.encode(claims, key, self.algorithm or algorithm, headers)
        except (ValueError, TypeError, NotImplementedError, jwt.PyJWTError):
            raise CredentialsError(f"`private_key` of {self.client_id} cannot sign with {self.algorithm}") from None


def _load_key(text: str) -> tuple[Any, str]:
    """A private key, and the algorithm that goes with it. No text of an error quotes the key."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise CredentialsError(f"`private_key` needs `pip install 'tarsy-tasks[oauth]'` ({error})") from None
    try:
        key = load_pem_private_key(text.encode(), None)
    except Exception:
        raise CredentialsError("`private_key` is not a private key in PEM without a password") from None
    if isinstance(key, RSAPrivateKey):
        return key, "RS256"
    if isinstance(key, Ed25519PrivateKey):
        return key, "EdDSA"
    if isinstance(key, EllipticCurvePrivateKey) and key.curve.name in _CURVES:
        return key, _CURVES[key.curve.name]
    raise CredentialsError("`private_key` is of a kind that cannot sign; use RSA, P-256, P-384, P-521 or Ed25519")


def _reveal(value: SecretStr | None) -> str:
    return "" if value is None else value.get_secret_value()
