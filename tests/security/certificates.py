"""Certificates that are made for a test and die with it."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

_DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority.

    Attributes:
        path: Its own certificate.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.path, _ = self._write(name, self._key, name, is_authority=True)

    def issue(self, name: str, *, days: int = 1, address: str = "127.0.0.1") -> tuple[Path, Path]:
        """A certificate of this name, and its private key.

        Args:
            days: For how long; a negative number for one that has expired.
            address: Of the machine that it is good for.
        """
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return self._write(name, key, self._name, days=days, address=address)

    def _write(
        self,
        name: str,
        key: rsa.RSAPrivateKey,
        issuer: str,
        *,
        days: int = 1,
        address: str = "127.0.0.1",
        is_authority: bool = False,
    ) -> tuple[Path, Path]:
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.IPAddress(ipaddress.ip_address(address))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 3 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        certificate_path, key_path = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate_path, key_path
