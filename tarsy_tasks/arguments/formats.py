"""Whether a text may have a `format` of JSON Schema.

Owns that guess, which is rough on purpose: it only prevents that a sentence is sent as a date. `format` is an
annotation in JSON Schema, not a rule, so it rejects no value that a model wrote for the property itself.
"""

import ipaddress
import re
from typing import Any

__all__ = ["may_have_format"]

_FORMATS = {
    name: re.compile(pattern)
    for name, pattern in {
        "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
        "date-time": r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}\S*",
        "time": r"[0-9]{2}:[0-9]{2}\S*",
        "email": r"[^\s@]+@[^\s@]+",
        "uri": r"[A-Za-z][A-Za-z0-9+.-]*:\S+",
        "url": r"[A-Za-z][A-Za-z0-9+.-]*:\S+",
        "uuid": r"[0-9A-Fa-f-]{32,36}",
        "hostname": r"[A-Za-z0-9.-]+",
    }.items()
}


def may_have_format(form: Any, text: str) -> bool:
    """Whether a text may have a format; any text may have an unknown one."""
    if form in ("ipv4", "ipv6"):
        try:
            return ipaddress.ip_address(text).version == int(form[3:])
        except ValueError:
            return False
    pattern = _FORMATS.get(form) if isinstance(form, str) else None
    return pattern is None or pattern.fullmatch(text) is not None
