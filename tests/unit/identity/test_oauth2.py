"""Tokens by OAuth2 client credentials: requests to the issuer, lifetimes of tokens, and the issuer's errors."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.pulsar_credentials import client_authentication
from pulsar_sidecar.identity.credentials import ClientCredentials, parse_credentials
from pulsar_sidecar.identity.oauth2 import OAuth2Tokens, parse_oauth2
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError, SidecarError, TemporaryError

from tests.fakes.clock import FakeClock
from tests.fakes.issuer import FakeIssuer, running_issuer

JAVA = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"
SECRET = "s3cr3t-value"
KEY = {"type": "client_credentials", "client_id": "ops", "client_secret": SECRET, "client_email": "x@y"}


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    with running_issuer() as running:
        yield running


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "my key.json"
    file.write_text(json.dumps(KEY))
    return file


def params(issuer: FakeIssuer, key: str, **others: object) -> dict[str, object]:
    return {"type": "client_credentials", "issuerUrl": issuer.url, "privateKey": key, **others}


def file_url(file: Path) -> str:
    return f"file://{str(file).replace(' ', '%20')}"


@pytest.mark.parametrize("plugin", ["oauth2", JAVA])
def test_brokers_are_shown_the_issuers_token(plugin: str, issuer: FakeIssuer, key_file: Path) -> None:
    text = json.dumps(params(issuer, file_url(key_file), audience="pulsar", scope="a b"))
    credentials = parse_credentials(plugin, text)
    assert credentials.is_secret
    assert credentials.http_headers() == {"X-Pulsar-Auth-Method-Name": "token", "Authorization": "Bearer token-1"}
    assert (credentials.method, credentials.binary_data()) == ("token", b"token-1")
    assert client_authentication(credentials) is not None
    assert issuer.forms == [
        {
            "grant_type": "client_credentials",
            "client_id": "ops",
            "client_secret": SECRET,
            "audience": "pulsar",
            "scope": "a b",
        }
    ]
    assert SECRET not in repr(credentials)


def test_params_may_stand_in_a_file_and_the_key_in_the_params(issuer: FakeIssuer, tmp_path: Path) -> None:
    key = "data:application/json;base64," + base64.b64encode(json.dumps(KEY).encode()).decode()
    file = tmp_path / "params.json"
    file.write_text(json.dumps(params(issuer, key)))
    assert parse_credentials("oauth2", f"file://{file}").current_token() == "token-1"
    assert issuer.forms[0]["client_secret"] == SECRET


def test_a_token_serves_until_it_is_about_to_expire(issuer: FakeIssuer, key_file: Path) -> None:
    clock = FakeClock()
    tokens = OAuth2Tokens(parse_oauth2(params(issuer, file_url(key_file))), clock)
    issuer.lifetime_seconds = 100
    assert [tokens.current() for _ in range(3)] == ["token-1"] * 3
    clock.advance_ms(91_000)
    assert tokens.current() == "token-2"
    issuer.lifetime_seconds = None
    clock.advance_ms(100_000)
    assert [tokens.current(), tokens.current()] == ["token-3", "token-3"]
    clock.advance_ms(61_000)
    assert tokens.current() == "token-4"


def test_the_last_token_serves_to_its_end_while_the_issuer_is_away(issuer: FakeIssuer, key_file: Path) -> None:
    clock = FakeClock()
    tokens = OAuth2Tokens(parse_oauth2(params(issuer, file_url(key_file))), clock)
    issuer.lifetime_seconds = 100
    assert tokens.current() == "token-1"
    issuer.answers["/token"] = None
    clock.advance_ms(95_000)
    assert tokens.current() == "token-1"
    clock.advance_ms(5_000)
    for _ in range(3):
        with pytest.raises(TemporaryError):
            tokens.current()
    assert len(issuer.forms) == 3  # no call waits for an issuer that has just failed
    del issuer.answers["/token"]
    clock.advance_ms(3_000)
    assert tokens.current() == "token-4"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/token", b"<html>"),
        ("/token", b"[]"),
        ("/token", b'{"access_token": 7}'),
        ("/.well-known/openid-configuration", None),
        ("/.well-known/openid-configuration", b'{"issuer": "https://other"}'),
    ],
)
def test_an_issuer_in_trouble_may_be_asked_again(
    path: str, body: bytes | None, issuer: FakeIssuer, key_file: Path
) -> None:
    issuer.answers[path] = body
    with pytest.raises(TemporaryError) as raised:
        OAuth2Tokens(parse_oauth2(params(issuer, file_url(key_file)))).current()
    assert SECRET not in str(raised.value)


def test_a_client_that_the_issuer_refuses_is_not_authenticated(issuer: FakeIssuer, key_file: Path) -> None:
    issuer.statuses["/token"] = 401
    issuer.answers["/token"] = json.dumps({"error": "invalid_client", "error_description": SECRET}).encode()
    with pytest.raises(NotAuthenticatedError, match="invalid_client") as raised:
        OAuth2Tokens(parse_oauth2(params(issuer, file_url(key_file)))).current()
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"client_id": "a"}', f'{{"client_id": 7, "client_secret": "{SECRET}"}}']
)
def test_a_key_that_cannot_be_used_is_not_shown(content: str, issuer: FakeIssuer, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(content)
    with pytest.raises(NotAuthenticatedError, match="privateKey") as raised:
        OAuth2Tokens(parse_oauth2(params(issuer, f"file://{file}"))).current()
    assert SECRET not in str(raised.value)
    assert issuer.asked == []


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"issuerUrl": "https://a"},
        {"issuerUrl": "http://id.example", "privateKey": "file:///k"},
        {"issuerUrl": "https://a", "privateKey": SECRET},
        {"issuerUrl": "https://a", "privateKey": {"client_secret": SECRET}},
        {"issuerUrl": "https://a", "privateKey": "file:///k", "type": "password"},
        {"issuerUrl": "https://a", "privateKey": "file:///k", "audience": ["x"]},
    ],
)
def test_params_that_cannot_be_used_are_refused_and_not_shown(document: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match="authParams") as raised:
        parse_credentials("oauth2", json.dumps(document))
    assert SECRET not in str(raised.value)


def test_a_secret_does_not_leave_without_tls(issuer: FakeIssuer, key_file: Path) -> None:
    issuer.changes = {"token_endpoint": "http://id.example/token"}
    with pytest.raises(SidecarError, match="without TLS"):
        OAuth2Tokens(parse_oauth2(params(issuer, file_url(key_file)))).current()
    assert ClientCredentials().method == "none"
