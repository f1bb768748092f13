"""authPlugin and authParams as pulsar-admin takes them, and secrets that never show."""

import base64
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.pulsar_client.clients import open_client
from pulsar_sidecar.adapters.pulsar_credentials import client_authentication
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.identity.credentials import (
    AuthPlugin,
    ClientCertificate,
    ClientCredentials,
    TlsOptions,
    parse_credentials,
)
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError

JAVA = "org.apache.pulsar.client.impl.auth.Authentication"
METHOD = "X-Pulsar-Auth-Method-Name"
SECRET = "s3cr3t-value"
CERTIFICATE = ClientCertificate(Path("/c.pem"), Path("/k.pem"))


@pytest.mark.parametrize(
    ("plugin", "params"),
    [(None, None), ("", ""), ("  ", " "), ("disabled", "ignored"), (f"{JAVA}Disabled", "ignored")],
)
def test_missing_or_disabled_plugin_sends_no_credentials(plugin: str | None, params: str | None) -> None:
    credentials = parse_credentials(plugin, params)
    assert credentials == ClientCredentials()
    assert credentials.http_headers() == {}
    assert client_authentication(credentials) is None
    assert credentials.shown_certificate(TlsOptions()) is None


@pytest.mark.parametrize("plugin", ["token", f"{JAVA}Token"])
@pytest.mark.parametrize("params", [f"token:{SECRET}", SECRET, f" {SECRET}\n", f'{{"token": "{SECRET}"}}'])
def test_tokens(plugin: str, params: str) -> None:
    credentials = parse_credentials(plugin, params)
    assert credentials.http_headers() == {METHOD: "token", "Authorization": f"Bearer {SECRET}"}
    assert client_authentication(credentials) is not None
    assert SECRET not in repr(credentials)


@pytest.mark.parametrize("form", ["file://{}", "file:{}"])
def test_a_token_file_is_read_on_every_use(tmp_path: Path, form: str) -> None:
    file = tmp_path / "to ken"
    credentials = parse_credentials("token", form.format(str(file).replace(" ", "%20")))
    with pytest.raises(NotAuthenticatedError, match="authParams"):
        credentials.http_headers()
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert credentials.http_headers()["Authorization"] == f"Bearer {token}"
    file.write_text("\n")
    with pytest.raises(NotAuthenticatedError, match="empty"):
        credentials.current_token()
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NotAuthenticatedError):
        credentials.current_token()


@pytest.mark.parametrize("plugin", ["basic", f"{JAVA}Basic"])
def test_basic(plugin: str) -> None:
    credentials = parse_credentials(plugin, f'{{"userId": "ädmin", "password": "{SECRET}"}}')
    assert credentials.http_headers()[METHOD] == "basic"
    scheme, _, encoded = credentials.http_headers()["Authorization"].partition(" ")
    assert scheme == "Basic"
    assert base64.b64decode(encoded).decode() == f"ädmin:{SECRET}"
    assert client_authentication(credentials) is not None
    assert SECRET not in repr(credentials)


@pytest.mark.parametrize("plugin", ["tls", f"{JAVA}Tls"])
@pytest.mark.parametrize(
    "params", ["tlsCertFile:/c.pem,tlsKeyFile:/k.pem", '{"tlsCertFile": "/c.pem", "tlsKeyFile": "/k.pem"}']
)
def test_tls(plugin: str, params: str) -> None:
    credentials = parse_credentials(plugin, params)
    assert credentials.plugin is AuthPlugin.TLS
    assert credentials.shown_certificate(TlsOptions()) == CERTIFICATE
    assert credentials.http_headers() == {METHOD: "tls"}


def test_a_certificate_is_always_shown_and_is_the_identity_where_nothing_else_is_named() -> None:
    tls = TlsOptions(client_certificate=CERTIFICATE)
    for plugin, params in ((None, None), ("token", "token:x")):
        assert parse_credentials(plugin, params, CERTIFICATE).shown_certificate(tls) == CERTIFICATE
    assert parse_credentials("tls", None, CERTIFICATE).certificate == CERTIFICATE
    other = parse_credentials("tls", "tlsCertFile:/other.pem,tlsKeyFile:/other.key", CERTIFICATE)
    assert other.shown_certificate(tls) == ClientCertificate(Path("/other.pem"), Path("/other.key"))


def test_a_file_that_cannot_be_used_is_named_before_anything_is_connected(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    bad = ClientCertificate(empty, empty)
    for tls in (
        TlsOptions(trust_certs_file=Path("/no/such.pem")),
        TlsOptions(trust_certs_file=empty),
        TlsOptions(client_certificate=bad),
    ):
        named = "/no/such.pem" if tls.trust_certs_file == Path("/no/such.pem") else str(empty)
        with pytest.raises(InvalidInputError, match=named):
            open_client("pulsar://127.0.0.1:1", None, tls)
        with pytest.raises(InvalidInputError, match=named):
            AdminRest(["https://127.0.0.1:1"], None, tls)


@pytest.mark.parametrize(
    ("plugin", "params"),
    [
        ("token", f'{{"key": "{SECRET}"}}'),
        ("token", None),
        ("token", "file://"),
        ("basic", SECRET),
        ("basic", f'{{"userId": "u", "pass": "{SECRET}"}}'),
        ("basic", f'["{SECRET}"]'),
        ("basic", f'{{"userId": "u", "password": "{SECRET}"'),
        ("tls", f"tlsCertFile:{SECRET}"),
        ("tls", ""),
        (None, SECRET),
        (" ", SECRET),
        ("athenz", SECRET),
        ("org.example.MyAuth", SECRET),
    ],
)
def test_unusable_settings_are_refused_without_showing_them(plugin: str | None, params: str | None) -> None:
    with pytest.raises(InvalidInputError, match="authP") as caught:
        parse_credentials(plugin, params)
    assert SECRET not in str(caught.value)


def test_the_refusal_of_an_unknown_plugin_names_what_is_supported() -> None:
    with pytest.raises(InvalidInputError, match=r"token.*AuthenticationToken.*basic.*tls"):
        parse_credentials("kerberos", None)
