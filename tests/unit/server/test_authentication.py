import base64
import hashlib
import hmac
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, public_key, secret_key

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served, served

SECRET = b"0123456789abcdef0123456789abcdef"
STATUS = "/admin/v2/ledger-deletion/status"


def data_url(key: bytes) -> str:
    return "data:;base64," + base64.b64encode(key).decode()


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def by_secret() -> Iterator[tuple[FakeDeletionService, Served]]:
    service = FakeDeletionService()
    authentication = Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()))
    with served(service, authentication) as server:
        yield service, server


@pytest.fixture(scope="module")
def by_public_key(rsa_key: rsa.RSAPrivateKey) -> Iterator[Served]:
    key = public_key(data_url(der(rsa_key)))
    with served(FakeDeletionService(), Authentication(TokenVerifier(key, SystemClock()))) as server:
        yield server


def der(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def hs256(claims: dict[str, object], key: bytes = SECRET, algorithm: str = "HS256") -> str:
    return jwt.encode(claims, key, algorithm=algorithm)


def unsigned(header: dict[str, object], claims: dict[str, object], signature: str = "") -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)]
    return ".".join([*parts, signature])


def ask(server: Served, authorization: str | None, method: str = "GET", path: str = STATUS) -> tuple[int, str]:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = server.ask(method, path, headers=headers)
    return answer.status, answer.reason if answer.status >= 400 else ""


NOW = SystemClock().now_ms() // 1000
ADMIN: dict[str, object] = {"sub": "admin"}
REFUSED: dict[str, tuple[str | None, int]] = {
    "no header": (None, 401),
    "empty header": ("", 401),
    "other scheme": ("Basic YWRtaW46YWRtaW4=", 401),
    "no token": ("Bearer", 401),
    "blank token": ("Bearer   ", 401),
    "not a token": ("Bearer x.y.z", 401),
    "wrong key": ("Bearer " + hs256(ADMIN, b"another secret key of 32 bytes!!"), 401),
    "alg none": ("Bearer " + unsigned({"alg": "none", "typ": "JWT"}, ADMIN), 401),
    "alg None": ("Bearer " + unsigned({"alg": "None"}, ADMIN, "x"), 401),
    "no alg": ("Bearer " + unsigned({}, ADMIN), 401),
    "alg is a number": ("Bearer " + unsigned({"alg": 1}, ADMIN), 401),
    "stripped signature": ("Bearer " + hs256(ADMIN).rpartition(".")[0] + ".", 401),
    "changed claims": (
        "Bearer " + unsigned({"alg": "HS256"}, ADMIN, hs256({"sub": "guest"}).rpartition(".")[2]),
        401,
    ),
    "expired": ("Bearer " + hs256(ADMIN | {"exp": NOW - 10}), 401),
    "expires now": ("Bearer " + hs256(ADMIN | {"exp": NOW - 0.001}), 401),
    "not yet": ("Bearer " + hs256(ADMIN | {"nbf": NOW + 3600}), 401),
    "exp is a text": ("Bearer " + unsigned({"alg": "HS256"}, ADMIN | {"exp": "x"}, "x"), 401),
    "no role": ("Bearer " + hs256({}), 401),
    "empty role": ("Bearer " + hs256({"sub": ""}), 401),
    "other role": ("Bearer " + hs256({"sub": "guest"}), 403),
    "nearly the role": ("Bearer " + hs256({"sub": "Admin"}), 403),
    "roles in one": ("Bearer " + hs256({"sub": "admin,ops"}), 403),
    "far too long": ("Bearer " + "a" * 20_000, 401),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_credentials_are_refused(case: str, by_secret: tuple[FakeDeletionService, Served]) -> None:
    service, server = by_secret
    service.asked.clear()
    authorization, status = REFUSED[case]
    answered, reason = ask(server, authorization)
    assert answered == status
    assert reason
    if authorization and len(authorization) > 20:
        assert authorization.split()[-1] not in reason
    assert service.asked == []


@pytest.mark.parametrize("role", ["admin", "ops"])
def test_a_superuser_may_call(role: str, by_secret: tuple[FakeDeletionService, Served]) -> None:
    token = hs256({"sub": role, "exp": NOW + 3600, "aud": "anybody"})
    assert ask(by_secret[1], f"Bearer {token}") == (200, "")
    assert ask(by_secret[1], f"bearer {token}") == (200, "")


def test_the_role_is_the_one_who_asked(by_secret: tuple[FakeDeletionService, Served]) -> None:
    service, server = by_secret
    headers = {"Authorization": f"Bearer {hs256({'sub': 'ops'})}"}
    record = {
        "ledgerId": 7,
        "topicName": "persistent://t/n/x",
        "ledgerType": "LEDGER",
        "ledgerComponent": "MANAGED_LEDGER",
    }
    assert server.ask("DELETE", "/admin/v2/persistent/t/n/x", headers=headers).status == 204
    assert server.ask("POST", "/admin/v2/ledger-deletion/pending", {"ledgers": [record]}, headers).status == 200
    assert server.ask("POST", "/admin/v2/persistent/t/n/x/deleteLedger", record, headers).status == 204
    assert service.calls("delete_topic")[-1][-1] == "ops"  # type: ignore[index]
    assert service.recorded[-1].mark.requested_by == "ops"
    assert service.judged[-1][0].mark.requested_by == "ops"


@pytest.mark.parametrize("path", [STATUS, "/openapi.json", "/docs", "/no-such-path"])
def test_a_token_counts_in_its_header_alone(path: str, by_secret: tuple[FakeDeletionService, Served]) -> None:
    assert ask(by_secret[1], None, path=path)[0] == 401
    assert by_secret[1].ask("GET", f"{path}?token={hs256(ADMIN)}").status == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
def test_probes_and_metrics_are_open(path: str, by_secret: tuple[FakeDeletionService, Served]) -> None:
    assert by_secret[1].ask("GET", path).status == 200


@pytest.mark.parametrize(
    "path", ["/livez/", "/livez/../admin/v2/ledger-deletion/status", "//livez", "/LIVEZ", "/%6Civez"]
)
def test_path_resembling_a_probe_requires_authentication(
    path: str, by_secret: tuple[FakeDeletionService, Served]
) -> None:
    assert by_secret[1].ask("GET", path).status == 401


def test_two_authorization_headers_are_refused(by_secret: tuple[FakeDeletionService, Served]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", by_secret[1].port, timeout=10)
    connection.putrequest("GET", STATUS)
    connection.putheader("Authorization", f"Bearer {hs256(ADMIN)}")
    connection.putheader("Authorization", f"Bearer {hs256({'sub': 'guest'})}")
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


def test_a_public_key_verifies_its_own_tokens_only(by_public_key: Served, rsa_key: rsa.RSAPrivateKey) -> None:
    def signed(key: bytes, algorithm: str) -> str:
        return "Bearer " + jwt.encode({"sub": "admin"}, key, algorithm=algorithm)

    assert ask(by_public_key, signed(private(rsa_key), "RS256")) == (200, "")
    assert ask(by_public_key, signed(private(rsa_key), "RS512")) == (200, "")
    assert ask(by_public_key, signed(private(rsa.generate_private_key(65537, 2048)), "RS256"))[0] == 401
    assert ask(by_public_key, signed(private(ec.generate_private_key(ec.SECP256R1())), "ES256"))[0] == 401


def test_public_key_is_rejected_as_hmac_secret(by_public_key: Served, rsa_key: rsa.RSAPrivateKey) -> None:
    for known in (der(rsa_key), pem(rsa_key)):
        signing = unsigned({"alg": "HS256", "typ": "JWT"}, ADMIN).rstrip(".")
        digest = hmac.new(known, signing.encode(), hashlib.sha256).digest()
        forged = f"{signing}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        assert ask(by_public_key, f"Bearer {forged}")[0] == 401


@pytest.mark.parametrize(
    ("length", "algorithms"), [(32, ["HS256"]), (48, ["HS256", "HS384"]), (64, ["HS256", "HS384", "HS512"])]
)
@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
def test_a_secret_is_as_long_as_the_hash(length: int, algorithms: list[str]) -> None:
    secret = bytes(range(length))
    tokens = TokenVerifier(secret_key(data_url(secret)), SystemClock())
    for algorithm in ("HS256", "HS384", "HS512"):
        token = hs256(ADMIN, secret, algorithm)
        if algorithm in algorithms:
            assert tokens.role(token) == "admin"
        else:
            with pytest.raises(NotAuthenticatedError, match=f"{algorithms[-1]} only"):
                tokens.role(token)


def test_a_short_rsa_key_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="2,048 bits"):
        public_key(data_url(der(rsa.generate_private_key(65537, 1024))))


@pytest.mark.parametrize(
    ("curve", "algorithm"), [(ec.SECP256R1(), "ES256"), (ec.SECP384R1(), "ES384"), (ec.SECP521R1(), "ES512")]
)
def test_elliptic_curves(curve: ec.EllipticCurve, algorithm: str) -> None:
    key = ec.generate_private_key(curve)
    token = jwt.encode({"sub": "admin"}, private(key), algorithm=algorithm)
    for form in (der(key), pem(key)):
        tokens = TokenVerifier(public_key(data_url(form)), SystemClock())
        assert tokens.role(token) == "admin"


def test_keys_are_read_in_every_form_of_pulsar(tmp_path: Path) -> None:
    path = tmp_path / "my secret.key"
    path.write_bytes(SECRET)
    encoded = base64.b64encode(SECRET).decode()
    for text in (
        data_url(SECRET),
        f"data:application/octet-stream;base64,{encoded}",
        f"file://{str(path).replace(' ', '%20')}",
        str(path),
        encoded,
    ):
        assert secret_key(text).current().key == SECRET


@pytest.mark.parametrize(
    "text", ["", "file:///no/such/file", "data:;base64,%%%", "data:", "not base64!", data_url(b"short"), "c2hvcnQ="]
)
def test_a_bad_secret_key_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(InvalidInputError, match="tokenSecretKey") as raised:
        secret_key(text)
    assert not text or text not in str(raised.value).replace("data:;base64,...", "")


def test_a_bad_public_key_is_refused() -> None:
    ed = ed25519.Ed25519PrivateKey.generate().public_key()
    for encoded in (
        b"",
        b"nonsense",
        b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----",
        ed.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ):
        with pytest.raises(InvalidInputError, match="tokenPublicKey"):
            public_key(data_url(encoded))


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize("value", ["soon", True, [1], {"a": 1}])
def test_invalid_time_claim_is_refused(claim: str, value: object) -> None:
    signing = unsigned({"alg": "HS256", "typ": "JWT"}, ADMIN | {claim: value}).rstrip(".")
    signature = base64.urlsafe_b64encode(hmac.new(SECRET, signing.encode(), hashlib.sha256).digest()).rstrip(b"=")
    tokens = TokenVerifier(secret_key(data_url(SECRET)), SystemClock())
    with pytest.raises(NotAuthenticatedError, match=claim):
        tokens.role(f"{signing}.{signature.decode()}")


MEANT = {"audience": "east"}
AUDIENCES: dict[str, tuple[dict[str, object], dict[str, str], str | None]] = {
    # As AuthenticationProviderToken judges: the text itself or a list that has it, and nothing else.
    "the text": ({"aud": "east"}, MEANT, None),
    "a list": ({"aud": ["west", "east"]}, MEANT, None),
    "none": ({}, MEANT, "names no audience"),
    "another text": ({"aud": "east-2"}, MEANT, "another audience"),
    "a list without it": ({"aud": ["west"]}, MEANT, "another audience"),
    "an empty list": ({"aud": []}, MEANT, "another audience"),
    "a number": ({"aud": 7}, MEANT, "another audience"),
    "an object": ({"aud": {"east": 1}}, MEANT, "another audience"),
    "another claim": ({"meant": "east"}, MEANT | {"audience_claim": "meant"}, None),
    "the usual claim where another counts": (
        {"aud": "east"}, MEANT | {"audience_claim": "meant"}, "claim meant"
    ),
    "not looked at": ({"aud": "west"}, {}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", AUDIENCES)
def test_a_token_for_another_audience_is_refused(name: str) -> None:
    claims, looked_at, refusal = AUDIENCES[name]
    tokens = TokenVerifier(secret_key(data_url(SECRET)), SystemClock(), **looked_at)
    token = hs256(ADMIN | claims)
    if refusal is None:
        assert tokens.role(token) == "admin"
    else:
        with pytest.raises(NotAuthenticatedError, match=refusal):
            tokens.role(token)


@pytest.mark.parametrize(
    ("claims", "role"),
    [({"who": "admin"}, "admin"), ({"who": ["admin", "x"]}, "admin"), ({"sub": "admin"}, None), ({"who": []}, None),
     ({"who": [7]}, None)],
)  # fmt: skip
def test_the_role_comes_from_the_claim_that_is_configured(claims: dict[str, object], role: str | None) -> None:
    tokens = TokenVerifier(secret_key(data_url(SECRET)), SystemClock(), role_claim="who")
    if role is not None:
        assert tokens.role(hs256(claims)) == role
    else:
        with pytest.raises(NotAuthenticatedError, match="claim who"):
            tokens.role(hs256(claims))


def test_valid_new_key_file_is_used_and_broken_one_ignored(tmp_path: Path) -> None:
    file, other = tmp_path / "token.key", b"another secret key of 32 bytes!!"
    file.write_bytes(SECRET)
    tokens = TokenVerifier(secret_key(f"file://{file}"), SystemClock())
    before, after = hs256(ADMIN), hs256(ADMIN, other)
    assert tokens.role(before) == "admin"

    file.write_bytes(b"too short")
    assert tokens.role(before) == "admin"
    file.unlink()
    assert tokens.role(before) == "admin"

    replacement = tmp_path / "new.key"
    replacement.write_bytes(other)
    replacement.rename(file)
    assert tokens.role(after) == "admin"
    with pytest.raises(NotAuthenticatedError):
        tokens.role(before)
