"""The names under which a configuration asks for patterns: groups, and their members.

Owns both tables. What shows by its form or its name that it is a secret is masked whatever is asked for, so most
members are only names: a group never takes away. What a group adds are the patterns of `OPTIONAL`, of things that are
not secret in themselves.
"""

from collections.abc import Iterable

__all__ = ["ALWAYS", "DEFAULT_GROUPS", "GROUPS", "OPTIONAL", "find_patterns"]

DEFAULT_GROUPS = ("basic",)

ALWAYS = (
    "api_key",
    "aws_access_key",
    "aws_secret_key",
    "github_token",
    "kubernetes_secret",
    "password",
    "private_key",
    "secret_key",
    "slack_token",
    "token",
)

OPTIONAL: dict[str, str] = {
    "certificate": r"(?s)-----BEGIN [A-Z0-9 ]*CERTIFICATE[A-Z ]*-----\s*(.+?)\s*-----END",
    "certificate_authority_data": (
        r"(?i:certificate-authority-data|client-certificate-data|caBundle|ca\.crt)\\*[\"']?[ \t]*:[ \t]*\\*[\"']?"
        r"([A-Za-z0-9+/]{8,}={0,2})"
    ),
    "email": r"\b[A-Za-z0-9._%+\-]+@[A-Za-z0-9\-]+(?:\.[A-Za-z0-9\-]+)*\.[A-Za-z]{2,63}\b",
    "ssh_key": (
        r"(?:ssh-(?:rsa|dss|ed25519|ed448)|ecdsa-sha2-nistp\d+)(?:@openssh\.com)?[ \t]+"
        r"(AAAA[A-Za-z0-9+/]{16,}={0,3}|[A-Za-z0-9+/=\-]{24,})"
    ),
    # Upper case tells it from a checksum, `=` from a word, and what begins with `/` is a path.
    "base64_secret": r"(?:^|[^\w+/=.\-])([A-Za-z0-9+][A-Za-z0-9+/]{18,}(?:=|[A-Z][A-Za-z0-9+/]*)=?)(?:$|[^\w+/=.\-])",
    "base64_short": r":[ \t]+\\*[\"']?([A-Za-z0-9+/]{3,22}={1,2})(?:$|[^\w+/=])",
}
"""Name → pattern, in RE2's syntax; where it has a group, only that is masked."""

GROUPS: dict[str, tuple[str, ...]] = {
    "basic": ("api_key", "password"),
    "secrets": ("api_key", "password", "token", "private_key", "secret_key"),
    "security": ("api_key", "password", "token", "certificate", "certificate_authority_data", "email", "ssh_key"),
    "kubernetes": ("kubernetes_secret", "api_key", "password", "certificate_authority_data"),
    "cloud": ("aws_access_key", "aws_secret_key", "api_key", "token"),
    "all": (*ALWAYS, *OPTIONAL),
}


def find_patterns(names: Iterable[str]) -> dict[str, str]:
    """The optional patterns that groups, or single members, ask for, by name.

    Raises:
        ValueError: There is no such group or pattern; the text lists the valid ones.
    """
    members: dict[str, None] = {}
    for name in names:
        if name in GROUPS:
            members |= dict.fromkeys(GROUPS[name])
        elif name in ALWAYS or name in OPTIONAL:
            members[name] = None
        else:
            known = f"{', '.join(GROUPS)}, or one of the patterns {', '.join(sorted((*ALWAYS, *OPTIONAL)))}"
            raise ValueError(f"unknown masking group {name!r}; use one of the groups {known}")
    return {name: OPTIONAL[name] for name in members if name in OPTIONAL}
