"""Certificates made by tests for servers on this machine."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pulsar_sidecar.local_cluster.processes import LOOPBACK
from pulsar_sidecar.model.clocks import SystemClock


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files of a self-signed certificate, which is also the one to trust."""

    file: Path
    key_file: Path


def write_certificate(directory: Path, name: str) -> Certificate:
    """Write a certificate of this machine's loopback address, valid for an hour."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .sign(key, SHA256())
    )
    made = Certificate(directory / f"{name}.crt", directory / f"{name}.key")
    made.file.write_bytes(certificate.public_bytes(Encoding.PEM))
    made.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return made


def write_key_pair(directory: Path) -> tuple[Path, Path]:
    """Write PEM files of a public and a private key for the encryption of messages."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public, private = directory / "public.pem", directory / "private.pem"
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return public, private
