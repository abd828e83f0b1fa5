"""The address of a Redis, as Celery's settings hold it.

Owns two rules: printing it, for example with the settings of an application, shows no password; and with TLS the
certificate of Redis is checked, unless the address says otherwise.
"""

from urllib.parse import urlsplit

__all__ = ["RedisUrl", "ask_for_certificate", "hide_password"]


class RedisUrl(str):
    """An address, or several with `;` between them. It is an ordinary text, except for its `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(";".join(map(hide_password, self.split(";"))))


def hide_password(url: str) -> str:
    """The address without user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def ask_for_certificate(url: str) -> str:
    """The address, or several, with `ssl_cert_reqs=required` added where it uses TLS and says nothing on certificates:
    Celery refuses such an address, and not before it first connects.
    """
    return ";".join(map(_with_certificate, url.split(";")))


def _with_certificate(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # connecting fails with the reason
        return url
    if parts.scheme != "rediss" or "ssl_cert_reqs" in parts.query:
        return url
    return parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))).geturl()
