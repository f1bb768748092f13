"""Tokens of OpenID Connect issuers: whose count, with which keys, and what an issuer in trouble means."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pulsar_sidecar.adapters.open_id_issuers import KeyCaching, OpenIdIssuers
from pulsar_sidecar.model.errors import NotAuthenticatedError, SidecarError, TemporaryError
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_open_id import OpenIdRules, OpenIdVerifier
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key

from tests.fakes.clock import FakeClock
from tests.fakes.issuer import FakeIssuer, running_issuer
from tests.unit.server.test_authentication import SECRET, data_url, hs256, unsigned

CLOCK = FakeClock()
NOW = CLOCK.now_ms() // 1000
GOOD: dict[str, Any] = {"sub": "ops", "aud": "sidecar", "exp": NOW + 3_600}


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    with running_issuer() as running:
        yield running


class Asked:
    """An authentication that trusts one issuer, and a token key of its own."""

    def __init__(self, issuer: FakeIssuer, role_claim: str = "sub") -> None:
        self.clock = FakeClock()
        keys = OpenIdIssuers([issuer.url], self.clock, KeyCaching(100, 1_000, 30), None)
        rules = OpenIdRules([issuer.url], ["sidecar", "brokers"], role_claim, leeway_seconds=5)
        open_id = OpenIdVerifier(rules, keys, self.clock)
        self.authentication = Authentication(TokenVerifier(secret_key(data_url(SECRET)), self.clock), open_id)

    def role(self, token: str) -> str | None:
        scope = {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())], "client": ("::1", 1)}
        return asyncio.run(self.authentication.caller(scope)).role

    def pass_seconds(self, seconds: int) -> None:
        self.clock.advance_ms(1_000 * seconds)


@pytest.fixture
def asked(issuer: FakeIssuer) -> Asked:
    return Asked(issuer)


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512"])
def test_an_issuers_token_names_its_role(issuer: FakeIssuer, asked: Asked, algorithm: str) -> None:
    assert asked.role(issuer.token(GOOD | {"aud": ["other", "brokers"]}, algorithm=algorithm)) == "ops"


def test_the_role_comes_from_the_claim_that_is_configured(issuer: FakeIssuer) -> None:
    assert Asked(issuer, "roles").role(issuer.token(GOOD | {"roles": ["admin", "ops"]})) == "admin"
    with pytest.raises(NotAuthenticatedError, match="claim roles"):
        Asked(issuer, "roles").role(issuer.token(GOOD))


def test_tokens_of_the_sidecars_own_key_count_beside_it(issuer: FakeIssuer, asked: Asked) -> None:
    assert asked.role(hs256({"sub": "admin"})) == "admin"
    assert issuer.asked == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "expired": (GOOD | {"exp": NOW - 5}, "expired"),
    "without an end": ({"sub": "ops", "aud": "sidecar"}, "does not expire"),
    "not yet": (GOOD | {"nbf": NOW + 6}, "not valid yet"),
    "for another service": (GOOD | {"aud": "elsewhere"}, "openIDAllowedAudiences"),
    "for nothing": ({"sub": "ops", "exp": NOW + 9}, "openIDAllowedAudiences"),
    "without a role": ({"aud": "sidecar", "exp": NOW + 9}, "claim sub"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_tokens_are_refused(name: str, issuer: FakeIssuer, asked: Asked) -> None:
    claims, reason = REFUSED[name]
    with pytest.raises(NotAuthenticatedError, match=reason):
        asked.role(issuer.token(claims))


def test_the_clocks_may_differ_by_the_leeway(issuer: FakeIssuer, asked: Asked) -> None:
    assert asked.role(issuer.token(GOOD | {"exp": NOW - 4, "nbf": NOW + 5})) == "ops"


def test_another_issuer_is_not_asked(issuer: FakeIssuer, asked: Asked) -> None:
    with running_issuer() as other:
        for claims in (GOOD, GOOD | {"iss": issuer.url + "/"}):
            with pytest.raises(NotAuthenticatedError):
                asked.role(other.token(claims))
        for named in ([issuer.url], None, 7):
            with pytest.raises(NotAuthenticatedError):
                asked.role(unsigned({"alg": "RS256", "kid": "first"}, GOOD | {"iss": named}, "x"))
        assert (other.asked, issuer.asked) == ([], [])
        with pytest.raises(NotAuthenticatedError, match="does not verify"):
            asked.role(other.token(GOOD | {"iss": issuer.url}))  # its key has the same id
        assert other.asked == []


def test_forged_signatures_are_rejected(issuer: FakeIssuer, asked: Asked) -> None:
    public = issuer.keys["first"].public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    claims = GOOD | {"iss": issuer.url}
    signing = unsigned({"alg": "HS256", "kid": "first"}, claims).rstrip(".")
    digest = hmac.new(public, signing.encode(), hashlib.sha256).digest()
    for forged in (
        f"{signing}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}",
        jwt.encode(claims, None, "none", {"kid": "first"}),
        jwt.encode(claims, issuer.keys["first"], "PS256", {"kid": "first"}),
        issuer.token(GOOD).rpartition(".")[0] + ".",
    ):
        with pytest.raises(NotAuthenticatedError, match="does not verify"):
            asked.role(forged)


def test_a_secret_among_an_issuers_keys_does_not_count(issuer: FakeIssuer, asked: Asked) -> None:
    issuer.answers["/keys"] = json.dumps(
        {"keys": [{"kty": "oct", "kid": "first", "k": "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}]}
    ).encode()
    with pytest.raises(NotAuthenticatedError, match="neither RSA of 2,048 bits"):
        asked.role(jwt.encode(GOOD | {"iss": issuer.url}, SECRET, "HS256", {"kid": "first"}))


def test_a_token_without_its_keys_id_is_refused(issuer: FakeIssuer, asked: Asked) -> None:
    with pytest.raises(NotAuthenticatedError):
        asked.role(unsigned({"alg": "RS256", "kid": 7}, GOOD | {"iss": issuer.url}, "x"))
    with pytest.raises(NotAuthenticatedError, match="header kid"):
        asked.role(jwt.encode(GOOD | {"iss": issuer.url}, issuer.keys["first"], "RS256"))


def test_keys_are_read_once_and_again_when_one_is_new(issuer: FakeIssuer, asked: Asked) -> None:
    for _ in range(3):
        assert asked.role(issuer.token(GOOD)) == "ops"
    assert issuer.asked_for_keys() == 1
    issuer.keys["second"] = ec.generate_private_key(ec.SECP256R1())
    asked.pass_seconds(31)
    assert asked.role(issuer.token(GOOD, "second")) == "ops"
    assert asked.role(issuer.token(GOOD)) == "ops"
    assert issuer.asked_for_keys() == 2


def test_unknown_keys_do_not_flood_the_issuer(issuer: FakeIssuer, asked: Asked) -> None:
    asked.role(issuer.token(GOOD))
    for number in range(20):
        with pytest.raises(NotAuthenticatedError, match="no such key"):
            asked.role(jwt.encode(GOOD | {"iss": issuer.url}, issuer.keys["first"], "RS256", {"kid": str(number)}))
    assert issuer.asked_for_keys() == 1


def test_a_key_that_an_issuer_withdraws_counts_until_the_keys_are_read_again(issuer: FakeIssuer, asked: Asked) -> None:
    token = issuer.token(GOOD)
    asked.role(token)
    issuer.keys = {"second": rsa.generate_private_key(65537, 2048)}
    assert asked.role(token) == "ops"
    asked.pass_seconds(101)
    with pytest.raises(NotAuthenticatedError, match="no such key"):
        asked.role(token)


def test_known_keys_outlive_an_issuer_that_is_away_until_they_expire(issuer: FakeIssuer, asked: Asked) -> None:
    token = issuer.token(GOOD)
    asked.role(token)
    issuer.answers["/keys"] = None
    asked.pass_seconds(101)
    assert [asked.role(token) for _ in range(3)] == ["ops"] * 3
    assert issuer.asked_for_keys() == 2
    asked.pass_seconds(900)
    with pytest.raises(TemporaryError, match="cannot be read"):
        asked.role(token)
    del issuer.answers["/keys"]
    asked.pass_seconds(6)
    assert asked.role(token) == "ops"


TROUBLE: dict[str, tuple[str, bytes | None]] = {
    "no discovery": ("/.well-known/openid-configuration", None),
    "discovery is no JSON": ("/.well-known/openid-configuration", b"<html>"),
    "discovery is no object": ("/.well-known/openid-configuration", b"[]"),
    "no keys": ("/keys", None),
    "keys are no JSON": ("/keys", b"\xff"),
    "keys are no object": ("/keys", b"[]"),
    "an empty set": ("/keys", b'{"keys": []}'),
    "keys of no kind": ("/keys", b'{"keys": [{"kid": "first"}]}'),
}


@pytest.mark.parametrize("name", TROUBLE)
def test_an_issuer_in_trouble_is_not_a_bad_token(name: str, issuer: FakeIssuer, asked: Asked) -> None:
    path, body = TROUBLE[name]
    issuer.answers[path] = body
    for _ in range(3):
        with pytest.raises(TemporaryError, match="cannot be read"):
            asked.role(issuer.token(GOOD))
    assert issuer.asked.count("/.well-known/openid-configuration") == 1


@pytest.mark.parametrize("changes", [{"issuer": "https://other"}, {"jwks_uri": None}, {"jwks_uri": "file:///etc/x"}])
def test_a_document_of_another_issuer_does_not_count(
    changes: dict[str, object], issuer: FakeIssuer, asked: Asked
) -> None:
    issuer.changes = changes
    with pytest.raises(TemporaryError):
        asked.role(issuer.token(GOOD))


def test_callers_with_known_keys_do_not_wait_for_a_slow_issuer(issuer: FakeIssuer, asked: Asked) -> None:
    known = issuer.token(GOOD)
    asked.role(known)
    asked.pass_seconds(31)
    issuer.delay_seconds = 1.0
    unknown = jwt.encode(GOOD | {"iss": issuer.url}, issuer.keys["first"], "RS256", {"kid": "x"})
    order: list[str] = []

    async def ask(name: str, token: str) -> None:
        scope = {"type": "http", "headers": [(b"authorization", f"Bearer {token}".encode())]}
        with suppress(SidecarError):
            await asked.authentication.caller(scope)
        order.append(name)

    async def both() -> None:
        await asyncio.gather(ask("unknown", unknown), ask("known", known))

    asyncio.run(both())
    assert order == ["known", "unknown"]
