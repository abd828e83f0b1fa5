"""The users of the Redis that tests run on: one for each part of a deployment, and `admin` for the tests themselves."""

from urllib.parse import urlsplit

__all__ = ["as_user", "password_of", "url_of"]


def password_of(user: str) -> str:
    return f"password-of-{user}-in-tests"


def url_of(port: int, user: str = "admin") -> str:
    """A Redis of this machine."""
    return f"redis://{user}:{password_of(user)}@127.0.0.1:{port}/0"


def as_user(url: str, user: str) -> str:
    """The same Redis for another user. A URL that names none stays as it is."""
    parts = urlsplit(url)
    if not parts.username:
        return url
    return parts._replace(netloc=f"{user}:{password_of(user)}@{parts.hostname}:{parts.port}").geturl()
