"""Certificates for tests: an authority, and what it signs, as PEM files."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from engine.transport.security import Security


@dataclass(frozen=True, slots=True)
class Signed:
    """One certificate and its key."""

    certificate: Path
    private_key: Path


class Authority:
    """Signs certificates; `path` is its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        limits = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self._name, self._key).add_extension(limits, critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, hosts: tuple[str, ...] = ("localhost",)) -> Signed:
        """A certificate for a name; it also stands for the hosts, and for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        if "localhost" in hosts:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = self._builder(subject, key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        signed = builder.sign(self._key, hashes.SHA256())
        made = Signed(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.private_key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        made.private_key.chmod(0o600)
        return made

    def security(self, name: str, **more: Any) -> Security:
        """One side with a certificate of its own, that knows this authority."""
        made = self.sign(name)
        return Security(
            certificate=made.certificate,
            private_key=made.private_key,
            authorities=self.path,
            **more,
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=36_500))
        )
