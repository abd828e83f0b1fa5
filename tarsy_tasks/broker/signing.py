"""Messages that are signed by who sends them, and refused when they are not.

Owns the serializer, and which settings of Celery go with it. Celery's own signs a message's text, but not what kind of
text it is, and reads whatever kind is said: pickle, too, so that any agent whose certificate is trusted, or who can
replay a message of one, runs code in the workers. Here it is JSON or nothing. What is signed is the body: server, tool,
arguments, deadline, agent; not the headers, such as the id of the task.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tarsy_tasks.errors import ConfigError

if TYPE_CHECKING:
    from tarsy_tasks.settings import Settings

__all__ = ["SIGNED", "explain", "read_signed", "sign", "signing_settings"]

SIGNED = "application/data"
"""Content type of a message that is signed."""
_SERIALIZER = "auth"
_JSON = "application/json"


def signing_settings(settings: "Settings") -> dict[str, Any]:
    """The settings of Celery with which this process signs, and takes only what is signed; none if it shall do neither.

    Raises:
        ConfigError: A key or a certificate is missing, cannot be read or has expired.
    """
    key, certificate, trusted = settings.signing_key, settings.signing_certificate, settings.signing_trusted
    if key is None and certificate is None and trusted is None:
        return {}
    if key is None or certificate is None:
        raise ConfigError(
            "TARSY_SIGNING_KEY and TARSY_SIGNING_CERTIFICATE belong together, and TARSY_SIGNING_TRUSTED needs both: "
            "a worker signs, too"
        )
    _register(key, certificate, trusted)
    signing: dict[str, Any] = {"task_serializer": _SERIALIZER}
    return {**signing, "accept_content": [_SERIALIZER]} if trusted is not None else signing


def read_signed(body: str | bytes) -> Any:
    """What a signed body says.

    Raises:
        ValueError: Nobody trusted has signed it, or this process trusts nobody; the text says why.
    """
    from kombu.exceptions import DecodeError
    from kombu.serialization import loads, registry

    if _SERIALIZER not in registry.name_to_type:
        raise ValueError("it is signed, and TARSY_SIGNING_KEY, _CERTIFICATE and _TRUSTED are not set here")
    try:
        return loads(body, SIGNED, "utf-8", force=True)
    except DecodeError as error:
        raise ValueError(f"its signature: {explain(error)}") from None


def sign(body: Any) -> str:
    """A body that this process signs; one that `read_signed` took."""
    from kombu.serialization import dumps

    signed: bytes | str = dumps(body, serializer=_SERIALIZER)[2]
    return signed if isinstance(signed, str) else signed.decode()


def explain(error: Exception) -> str | None:
    """Why a signature was not accepted; None for another error, whose text may quote the body."""
    from celery.exceptions import SecurityError

    return next((str(each) for each in error.args if isinstance(each, SecurityError)), None)


def _register(key: Path, certificate: Path, trusted: Path | None) -> None:
    """For the whole process: kombu knows one serializer of a name."""
    try:
        from celery.exceptions import SecurityError
        from celery.security.certificate import Certificate, FSCertStore
        from celery.security.key import PrivateKey
        from celery.security.serialization import SecureSerializer
    except ImportError as error:
        raise ConfigError(f"to sign messages takes `pip install 'tarsy-tasks[signing]'` ({error})") from None
    from kombu.serialization import loads, registry

    class Serializer(SecureSerializer):
        def deserialize(self, data: Any) -> Any:
            if store is None:
                raise SecurityError("nobody is trusted here")
            try:
                signed = self._unpack(data)
            except Exception:
                raise SecurityError("it is not signed") from None
            if signed["content_type"] != _JSON:
                raise SecurityError("what is signed is no JSON")
            signer = store[signed["signer"]]
            try:
                signer.verify(signed["body"], signed["signature"], self._digest)
            except SecurityError:
                raise
            except Exception:
                # Celery 5.7 means to say so itself, and fails at it.
                raise SecurityError(f"it is not that of {signer.get_id()}") from None
            return loads(signed["body"], _JSON, "utf-8", force=True)

    def read(path: Path) -> str:
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}, for signing messages, cannot be read: {error}") from None

    try:
        own = Certificate(read(certificate))
        if own.has_expired():
            raise ConfigError(f"{certificate}, for signing messages, has expired")
        store = None if trusted is None else FSCertStore(str(trusted))
        if store is not None and not list(store.itercerts()):
            raise ConfigError(f"{trusted} holds no certificate, so no message would be taken")
        serializer = Serializer(PrivateKey(read(key)), own, store)
    except (SecurityError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"messages cannot be signed or verified: {error}") from None
    registry.register(
        _SERIALIZER,
        serializer.serialize,
        serializer.deserialize,
        content_type=SIGNED,
        content_encoding="utf-8",
    )
