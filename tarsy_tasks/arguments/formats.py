"""The `format`s of JSON Schema: whether a text may have one, and an example of each.

Owns that guess, which is rough on purpose: it only prevents that a sentence is sent as a date. `format` is an
annotation in JSON Schema, not a rule, so it rejects no value that a model wrote for the property itself.
"""

import ipaddress
import re
from typing import Any

__all__ = ["EXAMPLES", "may_have_format"]

_URL = r"[A-Za-z][A-Za-z0-9+.-]*:\S+"
_FORMATS = {
    "date": (r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "2024-05-31"),
    "date-time": (r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}\S*", "2024-05-31T12:00:00Z"),
    "time": (r"[0-9]{2}:[0-9]{2}\S*", "12:00:00Z"),
    "email": (r"[^\s@]+@[^\s@]+", "name@example.com"),
    "uri": (_URL, "https://example.com/"),
    "url": (_URL, "https://example.com/"),
    "uuid": (r"[0-9A-Fa-f-]{32,36}", "123e4567-e89b-12d3-a456-426614174000"),
    "hostname": (r"[A-Za-z0-9.-]+", "host.example.com"),
}
EXAMPLES = {"ipv4": "192.0.2.1", "ipv6": "2001:db8::1"} | {name: example for name, (_, example) in _FORMATS.items()}


def may_have_format(form: Any, text: str) -> bool:
    """Whether a text may have a format; any text may have an unknown one."""
    if form in ("ipv4", "ipv6"):
        try:
            return ipaddress.ip_address(text).version == int(form[3:])
        except ValueError:
            return False
    known = _FORMATS.get(form) if isinstance(form, str) else None
    return known is None or re.fullmatch(known[0], text) is not None
