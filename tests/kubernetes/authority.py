"""The certificates of a node's members: an authority of its own, and files that ``kubectl`` and the members read."""

import base64
import ipaddress
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID
from pulsar_sidecar.model.clocks import SystemClock

_VALID = timedelta(days=1)


class Authority:
    """Signer of the certificates of one node's members, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self._key = _key()
        self._name = _subject("authority", None)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = self._unsigned(self._name, self._key).add_extension(constraints, True)
        self.file = self._write("authority.crt", self._certificate.sign(self._key, SHA256()).public_bytes(Encoding.PEM))

    def issue(self, name: str, group: str | None = None, addresses: Sequence[str] = ()) -> tuple[Path, Path]:
        """Issue a certificate and its key, for a user ``name`` and a server at the addresses."""
        key = _key()
        alternatives = [_alternative(each) for each in addresses or ("localhost",)]
        unsigned = self._unsigned(_subject(name, group), key)
        signed = unsigned.add_extension(x509.SubjectAlternativeName(alternatives), False).sign(self._key, SHA256())
        plain = name.replace(":", "-")
        return self._write(f"{plain}.crt", signed.public_bytes(Encoding.PEM)), self._write(f"{plain}.key", _pem(key))

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Return a public and a private key."""
        key = _key()
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        return self._write(f"{name}.pub", public), self._write(f"{name}.key", _pem(key))

    def kubeconfig(self, server: str, name: str, group: str | None = None) -> Path:
        """Return a file with which ``name`` reaches the API server."""
        certificate, key = self.issue(name, group)
        cluster = {"server": server, "certificate-authority-data": _encoded(self.file)}
        user = {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "node",
            "clusters": [{"name": "node", "cluster": cluster}],
            "users": [{"name": "node", "user": user}],
            "contexts": [{"name": "node", "context": {"cluster": "node", "user": "node"}}],
        }
        return self._write(f"{certificate.stem}.conf", json.dumps(document).encode())

    def _unsigned(self, subject: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
        now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
        return x509.CertificateBuilder(
            self._name, subject, key.public_key(), x509.random_serial_number(), now - _VALID, now + _VALID
        )

    def _write(self, name: str, content: bytes) -> Path:
        path = self._directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def _subject(name: str, group: str | None) -> x509.Name:
    parts = [(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in [*parts, (NameOID.COMMON_NAME, name)]])


def _alternative(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
