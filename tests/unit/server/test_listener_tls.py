"""The listener's certificates and those of its clients: whose role they prove, and how they are exchanged."""

import http.client
import json
import ssl
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.server.answers import parse_answer
from pulsar_sidecar.server.authentication import Authentication, role_of_certificate
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.callers import CallerRights
from pulsar_sidecar.server.listener_tls import ListenerTls

from tests.cluster.certificates import Certificate, write_certificate
from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served, served
from tests.unit.server.test_authentication import SECRET, data_url, hs256

BOTH = Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()), certificates=True)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("own"), "sidecar")


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return write_certificate(tmp_path_factory.mktemp("admin"), "admin")


@pytest.fixture
def tls(own: Certificate, admin: Certificate) -> ListenerTls:
    return ListenerTls(own.file, own.key_file, admin.file)


def ask(
    server: Served,
    own: Certificate,
    shown: Certificate | None = None,
    token: str | None = None,
    path: str = "/admin/v2/caller",
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cafile=str(own.file))
    if shown is not None:
        context.load_cert_chain(shown.file, shown.key_file)
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)
    try:
        connection.request("GET", path, headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def caller(server: Served, own: Certificate, shown: Certificate | None, token: str | None = None) -> tuple[object, str]:
    status, body = ask(server, own, shown, token)
    assert status == 200
    found = parse_answer(CallerRights, json.loads(body))
    return found.role, found.authenticated_by


def test_a_certificate_names_its_role(tls: ListenerTls, own: Certificate, admin: Certificate) -> None:
    with served(FakeDeletionService(), BOTH, tls=tls) as server:
        assert caller(server, own, admin) == ("admin", "certificate")
        assert ask(server, own)[0] == 401
        assert ask(server, own, path="/livez")[0] == 200
        assert caller(server, own, None, hs256({"sub": "ops"})) == ("ops", "token")
        # A token goes before the certificate, and one that does not verify is not replaced by it.
        assert caller(server, own, admin, hs256({"sub": "ops"})) == ("ops", "token")
        assert ask(server, own, admin, "x.y.z")[0] == 401
        with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
            ask(server, own, own)  # signed by an authority that is not trusted


def test_a_certificate_proves_nothing_where_it_was_not_asked_for(own: Certificate, admin: Certificate) -> None:
    with served(FakeDeletionService(), BOTH, tls=ListenerTls(own.file, own.key_file)) as server:
        assert ask(server, own, admin)[0] == 401


def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    tls: ListenerTls, own: Certificate, admin: Certificate
) -> None:
    with served(tls=replace(tls, client_required=True)) as server:
        assert ask(server, own, admin, path="/livez")[0] == 200
        with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
            ask(server, own, path="/livez")


def test_an_old_version_of_tls_is_refused(tls: ListenerTls, own: Certificate) -> None:
    strict = replace(tls, minimum_version=ssl.TLSVersion.TLSv1_3)
    context = ssl.create_default_context(cafile=str(own.file))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with served(tls=strict) as server:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context)
        with pytest.raises((ssl.SSLError, OSError)):
            connection.request("GET", "/livez")
        assert ask(server, own, path="/livez")[0] == 200


def test_new_certificates_count_without_a_restart(tmp_path: Path, admin: Certificate) -> None:
    ours = write_certificate(tmp_path, "sidecar")
    before = ours.file.read_bytes(), ours.key_file.read_bytes()
    old = Certificate(tmp_path / "old.crt", ours.key_file)
    old.file.write_bytes(before[0])
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(before[0])
    with served(FakeDeletionService(), BOTH, tls=ListenerTls(ours.file, ours.key_file, trusted)) as server:
        assert ask(server, ours, path="/livez")[0] == 200
        ours.file.write_bytes(b"half a certif")
        assert ask(server, old, path="/livez")[0] == 200

        write_certificate(tmp_path, "sidecar")
        assert ask(server, ours, path="/livez")[0] == 200
        with pytest.raises(ssl.SSLError):
            ask(server, old, path="/livez")

        trusted.write_bytes(admin.file.read_bytes())
        assert ask(server, ours, admin, path="/admin/v2/ledger-deletion/status")[0] == 200


@pytest.mark.parametrize("broken", ["certificate", "key", "trusted"])
def test_a_file_that_cannot_be_used_is_named_at_the_start(broken: str, tls: ListenerTls, tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    with (
        pytest.raises(InvalidInputError, match=r"bad\.pem"),
        served(tls=replace(tls, **{broken: bad})),
    ):
        pass


CN, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME


def named(*parts: Sequence[tuple[x509.ObjectIdentifier, str]]) -> bytes:
    """A certificate whose subject has these parts, the least specific one first."""
    key = ec.generate_private_key(ec.SECP256R1())
    rdns = [x509.RelativeDistinguishedName([x509.NameAttribute(*name) for name in part]) for part in parts]
    now = SystemClock().now_ms() // 1000
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name(rdns))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_time(now))
        .not_valid_after(_time(now + 60))
        .sign(key, SHA256())
        .public_bytes(Encoding.DER)
    )


def _time(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@pytest.mark.parametrize(
    ("parts", "role"),
    [
        ([[(OU, "ops")], [(CN, "admin")]], "admin"),
        ([[(CN, "admin")], [(OU, "ops")]], "admin"),
        ([[(CN, "first")], [(CN, "second")]], "second"),  # the subject's text begins with its last part
        ([[(CN, "tenant/admin@x y")]], "tenant/admin@x y"),
    ],
)
def test_the_role_is_the_common_name(parts: list[list[tuple[x509.ObjectIdentifier, str]]], role: str) -> None:
    assert role_of_certificate(named(*parts)) == role


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [[(OU, "admin")]],
        [[(CN, " ")]],
        [[(CN, "admin,CN=x")]],
        [[(CN, "x\\,CN=admin")]],
        [[(CN, "a+b")]],
        [[(CN, " admin")]],
        [[(CN, "admin"), (OU, "ops")]],
        [[(CN, "admin")], [(CN, "a,b")]],
    ],
)
def test_a_name_that_brokers_would_read_differently_is_not_a_role(
    parts: list[list[tuple[x509.ObjectIdentifier, str]]],
) -> None:
    with pytest.raises(NotAuthenticatedError, match="common name"):
        role_of_certificate(named(*parts))
