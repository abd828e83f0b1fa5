"""Signed messages: producers sign them, and workers refuse those that are not signed by a trusted certificate.

Owns the serializer, and the settings of Celery that go with it. Celery's own signs the text of a message but not its
content type, and reads any type, pickle included: so any agent whose certificate is trusted, and anybody who can replay
a message of one, could run code in the workers. This one reads JSON only. The body is signed: server, tool, arguments,
deadline, agent; the headers, such as the id of the task, are not.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tarsy_tasks.broker.principals import is_agent_name
from tarsy_tasks.errors import ConfigError

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.settings import Settings

__all__ = ["SIGNED", "SignedBody", "explain", "read_signed", "sign", "signer_of", "signing_settings"]

SIGNED = "application/data"
"""Content type of a signed message."""
_SERIALIZER = "auth"
_JSON = "application/json"


class SignedBody(list[Any]):
    """The body of a task whose signature was verified; `signer` is the subject of the certificate."""

    signer: str = ""


def signing_settings(settings: "Settings") -> dict[str, Any]:
    """The settings of Celery with which this process signs and takes only signed messages; none if it does neither.

    Raises:
        ConfigError: A key or a certificate is missing, cannot be read or has expired.
    """
    key, certificate, trusted = settings.signing_key, settings.signing_certificate, settings.signing_trusted
    if key is None and certificate is None and trusted is None:
        return {}
    if key is None or certificate is None:
        raise ConfigError(
            "set TARSY_SIGNING_KEY and TARSY_SIGNING_CERTIFICATE together; TARSY_SIGNING_TRUSTED needs both, because "
            "workers sign, too"
        )
    _register(key, certificate, trusted)
    signing: dict[str, Any] = {"task_serializer": _SERIALIZER}
    return {**signing, "accept_content": [_SERIALIZER]} if trusted is not None else signing


def signer_of(app: "Celery") -> str:
    """Whom workers see in what an application signs, unless they have the same certificate; empty if it does not sign
    with that of this process."""
    from tarsy_tasks.settings import load_settings

    if app.conf.task_serializer != _SERIALIZER or (certificate := load_settings().signing_certificate) is None:
        return ""
    from celery.security.certificate import Certificate

    return _subject_of(Certificate(certificate.read_text()))


def read_signed(body: str | bytes) -> Any:
    """Verify and decode a signed body.

    Raises:
        ValueError: No trusted certificate has signed it, or this process trusts none; the text says which.
    """
    from kombu.exceptions import DecodeError
    from kombu.serialization import loads, registry

    if _SERIALIZER not in registry.name_to_type:
        raise ValueError("it is signed; to read it here, set TARSY_SIGNING_KEY, _CERTIFICATE and _TRUSTED")
    try:
        return loads(body, SIGNED, "utf-8", force=True)
    except DecodeError as error:
        raise ValueError(f"its signature: {explain(error)}") from None


def sign(body: Any) -> str:
    """Sign a body that `read_signed` gave."""
    from kombu.serialization import dumps

    signed: bytes | str = dumps(body, serializer=_SERIALIZER)[2]
    return signed if isinstance(signed, str) else signed.decode()


def explain(error: Exception) -> str | None:
    """Why a signature was not accepted; None for any other error, for its text may quote the body."""
    from celery.exceptions import SecurityError

    return next((str(each) for each in error.args if isinstance(each, SecurityError)), None)


def _subject_of(signer: Any) -> str:
    """Its common name if it has nothing else; RFC 4514 otherwise."""
    subject: str = signer._cert.subject.rfc4514_string()
    name = subject.removeprefix("CN=")
    return name if is_agent_name(name) else subject


def _register(key: Path, certificate: Path, trusted: Path | None) -> None:
    """For the whole process: kombu has one serializer per name."""
    try:
        from celery.exceptions import SecurityError
        from celery.security.certificate import Certificate, FSCertStore
        from celery.security.key import PrivateKey
        from celery.security.serialization import SecureSerializer
    except ImportError as error:
        raise ConfigError(f"signing needs `pip install 'tarsy-tasks[signing]'` ({error})") from None
    from kombu.serialization import registry

    from tarsy_tasks.broker.received_json import read_json

    class Serializer(SecureSerializer):
        def deserialize(self, data: Any) -> Any:
            if store is None:
                raise SecurityError("this process trusts no certificate")
            try:
                signed = self._unpack(data)
            except Exception:
                raise SecurityError("it is not signed") from None
            if signed["content_type"] != _JSON:
                raise SecurityError("the signed body is not JSON")
            signer: Any = store[signed["signer"]]
            try:
                signer.verify(signed["body"], signed["signature"], self._digest)
            except SecurityError:
                raise
            except Exception:
                # Celery 5.7 fails while it builds this error.
                raise SecurityError(f"it was not made by {signer.get_id()}") from None
            found = read_json(signed["body"])
            if not isinstance(found, list):
                return found
            body = SignedBody(cast("list[Any]", found))
            # Workers sign what follows a call, for any sender: their certificate says nothing about the sender.
            body.signer = "" if signer.get_id() == own.get_id() else _subject_of(signer)
            return body

    def read(path: Path) -> str:
        try:
            return path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}, which is needed to sign messages: {error}") from None

    try:
        own: Any = Certificate(read(certificate))
        if own.has_expired():
            raise ConfigError(f"the signing certificate {certificate} has expired")
        store = None if trusted is None else FSCertStore(str(trusted))
        if store is not None and not list(store.itercerts()):
            raise ConfigError(f"{trusted} contains no certificate, so every message would be refused")
        serializer = Serializer(PrivateKey(read(key)), own, store)
    except (SecurityError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"messages cannot be signed or verified: {error}") from None
    registry.register(_SERIALIZER, serializer.serialize, serializer.deserialize, SIGNED, "utf-8")
