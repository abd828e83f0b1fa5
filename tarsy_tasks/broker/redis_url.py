"""The address of a Redis, as Celery's settings hold it.

Owns what must hold for it wherever it is used: it shows no password where it is only printed, such as in the settings
of an application, and a certificate is asked for where nothing says otherwise.
"""

from urllib.parse import urlsplit

__all__ = ["RedisUrl", "ask_for_certificate", "hide_password"]


class RedisUrl(str):
    """An address, or several with `;` between them. To programs it is the text that it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(";".join(map(hide_password, self.split(";"))))


def hide_password(url: str) -> str:
    """The address as people may see it: without user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def ask_for_certificate(url: str) -> str:
    """The address, or several, with `ssl_cert_reqs=required` where there is TLS and no word on certificates: Celery
    refuses that, in the middle of whatever it does then."""
    return ";".join(map(_with_certificate, url.split(";")))


def _with_certificate(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:  # whoever connects says what is wrong
        return url
    if parts.scheme != "rediss" or "ssl_cert_reqs" in parts.query:
        return url
    return parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))).geturl()
