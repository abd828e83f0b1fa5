"""The corpora of the masking tests: texts with secrets in them, and texts without.

A file of tests/data/masking holds cases that `%%` separates, under headings (`=== shape`). `@name@` stands for a value
that is made here, always the same for the same case: the files hold no text that a scanner takes for a real token. In
a text with secrets every such value is one, but for those of `PUBLIC`.
"""

import base64
import random
import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

__all__ = ["Case", "load_cases"]

DATA = Path(__file__).parent.parent / "data" / "masking"
BASE62 = string.ascii_letters + string.digits
BASE64 = BASE62 + "+/"
HEX = "0123456789abcdef"
BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
CRYPT = BASE62 + "./"
WORDS = [
    "swordfish",
    "gandalf",
    "monkey",
    "dragon",
    "sunshine",
    "letmein",
    "trustno",
    "open",
    "sesame",
    "battery",
    "staple",
    "horse",
    "correct",
    "tango",
]
CONTROLS = {"NUL": "\0", "ESC": "\x1b"}
_PLACEHOLDER = re.compile(r"@([a-zA-Z]\w*)@")


@dataclass(frozen=True)
class Case:
    """One text of a corpus.

    Attributes:
        shape: The heading that it stands under.
        text: The text, with its values.
        secrets: The values that may not be in it after masking; empty for an innocent text.
    """

    shape: str
    text: str
    secrets: tuple[str, ...]


def load_cases(name: str) -> list[Case]:
    """All cases of `tests/data/masking/<name>.txt`."""
    content = (DATA / f"{name}.txt").read_text()
    headings = re.split(r"^=== (.+)\n", content, flags=re.MULTILINE)
    assert not headings[0]
    cases: list[Case] = []
    for shape, body in zip(headings[1::2], headings[2::2], strict=True):
        for template in re.split(r"^%%\n", body, flags=re.MULTILINE):
            cases.append(_fill(shape, template.removesuffix("\n"), random.Random(f"{name} {len(cases)}")))
    return cases


def _fill(shape: str, template: str, rng: random.Random) -> Case:
    secrets: list[str] = []

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name in CONTROLS:
            return CONTROLS[name]
        # What begins with a prefix that says what it is gives itself away only by the rest.
        made = VALUES[name](rng)
        secrets.extend(line for line in made.splitlines() if line)
        return made

    return Case(shape, _PLACEHOLDER.sub(value, template), tuple(secrets))


def _text(alphabet: str, length: int, prefix: str = "") -> Callable[[random.Random], str]:
    return lambda rng: prefix + "".join(rng.choices(alphabet, k=length))


def _base64(length: int) -> Callable[[random.Random], str]:
    return lambda rng: base64.b64encode(rng.randbytes(length)).decode()


def _encoded(make: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    return lambda rng: base64.b64encode(make(rng).encode()).decode()


def _password(specials: str) -> Callable[[random.Random], str]:
    """What people and generators choose: words with digits, or random characters with every class in it."""

    def make(rng: random.Random) -> str:
        if rng.random() < 0.4:
            return f"{rng.choice(WORDS).capitalize()}{rng.choice(specials)}{rng.randrange(10, 10_000)}"
        chosen = [rng.choice(string.ascii_lowercase), rng.choice(string.ascii_uppercase), rng.choice(string.digits)]
        chosen += rng.choices(BASE62 + specials, k=rng.randrange(6, 14))
        rng.shuffle(chosen)
        return rng.choice(BASE62) + "".join(chosen) + rng.choice(BASE62)

    return make


def _passphrase(rng: random.Random) -> str:
    return " ".join(rng.sample(WORDS, 4))


def _jwt(rng: random.Random) -> str:
    def part(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    payload = f'{{"sub":"{rng.randrange(10**9)}","iat":{rng.randrange(10**9)}}}'
    return f"{part('{' + chr(34) + 'alg' + chr(34) + ':' + chr(34) + 'HS256' + chr(34) + '}')}.{part(payload)}." + (
        _text(BASE62 + "_-", 43)(rng)
    )


def _pem_body(rng: random.Random) -> str:
    return "\n".join("MI" + _text(BASE64, 62)(rng) for _ in range(6)) + "\n" + _text(BASE64, 40)(rng) + "=="


def _pick(*makers: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(makers)(rng)


_ANY = "!#%&*-_=+.?^~"
VALUES: dict[str, Callable[[random.Random], str]] = {
    "password": _password(_ANY + "$@"),
    "password_noquote": _password(_ANY + "$@ "),
    "password_nosemi": _password(_ANY + "$"),
    "password_nospace": _password(_ANY + "$@"),
    "password_digit": lambda rng: f"{rng.choice(WORDS).capitalize()}{rng.randrange(10, 10_000)}",
    "password_b64": _encoded(_password(_ANY)),
    "url_password": lambda rng: quote(_password("!*@:/#")(rng), safe=""),
    "passphrase": _passphrase,
    "word": lambda rng: rng.choice(WORDS),
    "word_b64": _encoded(lambda rng: rng.choice(WORDS)),
    "word_digits": lambda rng: f"{rng.choice(WORDS)}{rng.randrange(10, 10_000)}",
    "number": lambda rng: str(rng.randrange(10**6, 10**8)),
    **{f"base62_{n}": _text(BASE62, n) for n in (20, 24, 32, 40, 68)},
    **{f"hex{n}": _text(HEX, n) for n in (7, 12, 16, 17, 32, 40, 64)},
    **{f"base64_{n}": _text(BASE64, n) for n in (40, 43, 86, 200)},
    "b64_32": _base64(32),
    "url_b64": lambda rng: quote(_base64(32)(rng), safe=""),
    "blob_b64": _base64(180),
    "base32_16": _text(BASE32, 16),
    "base32_32": _text(BASE32, 32),
    "uuid": lambda rng: "-".join(_text(HEX, n)(rng) for n in (8, 4, 4, 4, 12)),
    "basic": _encoded(lambda rng: f"admin:{_password(_ANY)(rng)}"),
    "jwt": _jwt,
    "pem_body": _pem_body,
    "pem_line": _text(BASE64, 64),
    "akia": _text(BASE32, 16, "AKIA"),
    "asia": _text(BASE32, 16, "ASIA"),
    "aws_secret": _text(BASE64, 40),
    "ghp": _text(BASE62, 36, "ghp_"),
    "gho": _text(BASE62, 36, "gho_"),
    "ghs": _text(BASE62, 36, "ghs_"),
    "github_pat": lambda rng: "github_pat_" + _text(BASE62, 22)(rng) + "_" + _text(BASE62, 59)(rng),
    "glpat": _text(BASE62 + "-_", 20, "glpat-"),
    "glcbt": _text(BASE62, 24, "glcbt-"),
    "glrt": _text(BASE62, 20, "glrt-"),
    "npm": _text(BASE62, 36, "npm_"),
    "pypi": _text(BASE62 + "-_", 120, "pypi-AgEIcHlwaS5vcmc"),
    "rubygems": _text(HEX, 48, "rubygems_"),
    "dckr": _text(BASE62 + "-_", 27, "dckr_pat_"),
    "slack_bot": lambda rng: (
        "xoxb-" + f"{rng.randrange(10**11, 10**12)}-{rng.randrange(10**11, 10**12)}-" + _text(BASE62, 24)(rng)
    ),
    "slack_user": lambda rng: (
        "xo"
        "xp-"
        f"{rng.randrange(10**11, 10**12)}-{rng.randrange(10**11, 10**12)}-"
        f"{rng.randrange(10**11, 10**12)}-" + _text(HEX, 32)(rng)
    ),
    "slack_app": lambda rng: (
        "xapp-1-A" + _text(BASE32, 10)(rng) + f"-{rng.randrange(10**12, 10**13)}-" + _text(HEX, 64)(rng)
    ),
    "telegram": lambda rng: f"{rng.randrange(10**9, 10**10)}:AA" + _text(BASE62 + "-_", 33)(rng),
    "discord": lambda rng: "M" + _text(BASE62, 25)(rng) + "." + _text(BASE62, 6)(rng) + "." + _text(BASE62, 38)(rng),
    "stripe": _text(BASE62, 24, "sk_live_"),
    "stripe_test": _text(BASE62, 24, "sk_test_"),
    "stripe_restricted": _text(BASE62, 24, "rk_live_"),
    "sendgrid": lambda rng: "SG." + _text(BASE62 + "-_", 22)(rng) + "." + _text(BASE62 + "-_", 43)(rng),
    "mailgun": _text(HEX, 32, "key-"),
    "twilio": _text(HEX, 32, "SK"),
    "shopify": _text(HEX, 32, "shpat_"),
    "openai": lambda rng: "sk-" + _text(BASE62, 20)(rng) + "T3BlbkFJ" + _text(BASE62, 20)(rng),
    "openai_proj": _text(BASE62 + "-_", 120, "sk-proj-"),
    "anthropic": lambda rng: "sk-ant-api03-" + _text(BASE62 + "-_", 93)(rng) + "AA",
    "huggingface": _text(string.ascii_letters, 34, "hf_"),
    "groq": _text(BASE62, 52, "gsk_"),
    "replicate": _text(BASE62, 37, "r8_"),
    "google_api": _text(BASE62 + "-_", 35, "AIza"),
    "google_oauth": _text(BASE62 + "-_", 100, "ya29.a0"),
    "azure_client_secret": lambda rng: _text(BASE62, 3)(rng) + "8Q~" + _text(BASE62 + "-_.~", 34)(rng),
    "azure_key": lambda rng: base64.b64encode(rng.randbytes(64)).decode(),
    "digitalocean": _text(HEX, 64, "dop_v1_"),
    "vault": _text(BASE62 + "-_", 92, "hvs."),
    "databricks": _text(HEX, 32, "dapi"),
    "grafana": lambda rng: "glsa_" + _text(BASE62, 32)(rng) + "_" + _text(HEX, 8)(rng),
    "terraform": lambda rng: _text(BASE62, 14)(rng) + ".atlasv1." + _text(BASE62, 67)(rng),
    "linear": _text(BASE62, 40, "lin_api_"),
    "pulumi": _text(HEX, 40, "pul-"),
    "fly": _text(BASE62, 43, "fo1_"),
    "newrelic": _text(BASE32, 27, "NRAK-"),
    "sentry": _text(HEX, 64, "sntryu_"),
    "age": _text("QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L", 58, "AGE-SECRET-KEY-1"),
    "wireguard": _base64(32),
    "ecdsa_public": lambda rng: "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBB" + _text(BASE64, 86)(rng) + "=",
    "ed25519_public": lambda rng: "AAAAC3NzaC1lZDI1NTE5AAAAI" + _text(BASE64, 43)(rng),
    "rsa_public": lambda rng: "AAAAB3NzaC1yc2EAAAADAQABAAABgQ" + _text(BASE64, 340)(rng),
    "apr1": lambda rng: "$apr1$" + _text(CRYPT, 8)(rng) + "$" + _text(CRYPT, 22)(rng),
    "sha512crypt": lambda rng: "$6$" + _text(CRYPT, 16)(rng) + "$" + _text(CRYPT, 86)(rng),
    "bcrypt": lambda rng: "$2" + rng.choice("aby") + "$12$" + _text(CRYPT, 53)(rng),
    "yescrypt": lambda rng: "$y$j9T$" + _text(CRYPT, 22)(rng) + "$" + _text(CRYPT, 43)(rng),
}
