"""Which names say that their value is a secret: `DB_PASSWORD`, `apiKey`, `x-auth-token`, `auth.password`.

Owns the words. What the value itself looks like is decided in `values`: a weak name alone is no proof, as `token` in
`token: expired`.
"""

import re
from enum import IntEnum
from functools import lru_cache

__all__ = ["STEMS", "Strength", "rate_name"]


class Strength(IntEnum):
    """How sure a name is of its value: when that looks long and random, random, when it stands in quotes, always."""

    FAINT = 0
    WEAK = 1
    QUOTED = 2
    STRONG = 3


_STRONG = frozenset(
    "password passwd passphrase passcode passwrd pswd pwd pw psk preshared passwort kennwort senha contrasena mdp "
    "wachtwoord wachtwort haslo apikey apikeys secretkey privatekey accesskey clientsecret masterkey signingkey "
    "encryptionkey accountkey sharedkey mnemonic".split()
)
_WEAK = frozenset(
    "secret token auth jwt bearer credential credentials creds otp totp pat csrf xsrf passkey authkey sessionkey "
    "sessionid sessid jsessionid phpsessid dockerconfigjson dockercfg identitytoken".split()
)
_GLUED = tuple(
    "password passwd passphrase passcode pwd secretkey apikey accesskey privatekey masterkey clientsecret".split()
)
"""Ends of words that were written together: `dbpassword`, `xapikey`."""
_GLUED_WEAK = ("token", "secret")
_GLUED_PASS = frozenset(f"{who}pass" for who in "db ssh user root admin smtp mail ldap my sql ftp http pg".split())
_STRONG_BEFORE_KEY = frozenset(
    "api secret private access signing encryption master account preshared shared client subscription".split()
)
_WEAK_BEFORE_KEY = frozenset(
    "auth app application session license deploy service storage hmac jwt aes rsa webhook admin root ssh pgp gpg "
    "unseal recovery consumer ingest integration write read server user project bot functions function".split()
)
_NO_KEY = frozenset(
    "public primary foreign partition sort cache row object routing hash group order index range composite unique natural "
    "surrogate candidate idempotency dedup dedupe deduplication shard message event map dict json label host registry "
    "path file translation locale i18n redis lookup join search query config setting option sorting grouping data".split()
)
"""Keys to other things than doors."""
_STRONG_BEFORE_SECRET = frozenset(
    "client app application consumer shared webhook jwt api session cookie signing user oauth totp otp mfa bot hmac "
    "auth token refresh access callback encryption master admin root db database".split()
)
_NO_TOKEN = frozenset("next page continuation continue cursor pagination sync skip start resume prev previous".split())
"""Tokens that a caller has to send back to read on: no secrets, and of no use when masked."""
_SEED = frozenset("otp totp mfa wallet hd".split())
_PHRASE = frozenset("seed recovery backup mnemonic secret pass".split())
_SUFFIXES = frozenset(
    "value string text plain plaintext raw data base b64 base64 hash hashed md5 sha1 sha256 sha512 encrypted enc prod "
    "production dev staging stage test new old current previous confirm confirmation default initial temp temporary "
    "json pem b v x".split()
)
"""They say which one or in what form, and leave it a secret: `SECRET_KEY_BASE`, `password_confirmation`, `token2`."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

STEMS = (
    r"(?i:pass|pwd|pw|psk|secret|token|credential|creds|auth|cookie|jwt|otp|mnemonic|seed|bearer|csrf|xsrf|sessid|_pat"
    r"|sessionid|dockerc|kennwort|senha|contrase|mdp|wachtw|haslo|phrase"
    r"|(?:api|app|application|secret|private|access|signing|encryption|master|account|preshared|shared|client"
    r"|subscription|auth|session|license|deploy|service|storage|hmac|jwt|aes|rsa|webhook|admin|root|ssh|pgp|gpg|unseal"
    r"|recovery|consumer|ingest|integration|write|read|server|user|project|bot|function|functions)[ _.-]?key)"
)
"""Every name that `rate_name` rates holds one of these; for the search, which costs less than the rating."""


@lru_cache(maxsize=4096)
def rate_name(name: str) -> Strength | None:
    """How sure a name is of its value being a secret; None: not at all.

    Args:
        name: A key, variable, header, column, tag or option, in any spelling, also as a path (`db.password`).
    """
    words = [word.lower() for word in _WORD.findall(name.replace("ñ", "n").replace("Ñ", "N")[-120:])]
    while words and (words[-1].isdigit() or (words[-1] in _SUFFIXES and len(words) > 1)):
        words.pop()
    if not words:
        return None
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _STRONG or last.endswith(_GLUED) or last in _GLUED_PASS:
        return Strength.STRONG
    if last == "pass":
        return Strength.STRONG if before else Strength.QUOTED
    if last in ("key", "keys"):
        return (
            Strength.STRONG
            if before in _STRONG_BEFORE_KEY
            else Strength.WEAK
            if before in _WEAK_BEFORE_KEY
            else Strength.FAINT
            if last == "key" and before not in _NO_KEY
            else None
        )
    if last == "secret" and before in _STRONG_BEFORE_SECRET:
        return Strength.STRONG
    if (last == "seed" and before in _SEED) or (last == "phrase" and before in _PHRASE):
        return Strength.STRONG
    if last.endswith("token") and (before in _NO_TOKEN or last.removesuffix("token") in _NO_TOKEN):
        return None
    if last in _WEAK or last.endswith(_GLUED_WEAK) or before + last in _WEAK:
        return Strength.WEAK
    return None


