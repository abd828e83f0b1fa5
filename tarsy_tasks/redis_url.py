"""The address of a Redis, as Celery's settings hold it.

Owns what must hold for it wherever it is used: it shows no password where it is only printed, such as in the settings
of an application, and a certificate is asked for when it does not say otherwise.
"""

from urllib.parse import urlsplit

__all__ = ["RedisUrl", "hide_password"]


class RedisUrl(str):
    """An address, or several with `;` between them. To programs it is the text that it is.

    Args:
        url: As somebody wrote it.
    """

    __slots__ = ()

    def __new__(cls, url: str) -> "RedisUrl":
        return super().__new__(cls, ";".join(map(_with_certificate, url.split(";"))))

    def __repr__(self) -> str:
        return repr(";".join(map(hide_password, self.split(";"))))


def hide_password(url: str) -> str:
    """The address as people may see it: without user and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _with_certificate(url: str) -> str:
    """Celery refuses TLS without a word on certificates, in the middle of whatever it does then."""
    try:
        parts = urlsplit(url)
    except ValueError:  # whoever connects says what is wrong
        return url
    if parts.scheme != "rediss" or "ssl_cert_reqs" in parts.query:
        return url
    return parts._replace(query="&".join(filter(None, (parts.query, "ssl_cert_reqs=required")))).geturl()
