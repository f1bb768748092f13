import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from pulsar_sidecar.adapters.open_id_issuers import KeyCaching, OpenIdIssuers
from pulsar_sidecar.cli.client import SidecarClient
from pulsar_sidecar.cli.connecting import credentials_of
from pulsar_sidecar.identity.credentials import ClientCredentials
from pulsar_sidecar.model.client_conf import ClientConf
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_open_id import OpenIdRules, OpenIdVerifier
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.listener_tls import ListenerTls

from tests.cluster.certificates import write_certificate
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.issuer import running_issuer
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

SECRET = b"0123456789abcdef0123456789abcdef"
TOKEN = jwt.encode({"sub": "admin"}, SECRET, algorithm="HS256")


@pytest.fixture
def guarded(terminal: Terminal) -> Iterator[Served]:
    key = secret_key("data:;base64," + base64.b64encode(SECRET).decode())
    with served(FakeDeletionService(), Authentication(TokenVerifier(key, SystemClock()))) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        yield server


@pytest.mark.usefixtures("guarded")
def test_a_token_comes_from_the_flag_the_environment_or_client_conf(terminal: Terminal, tmp_path: Path) -> None:
    refused = terminal.run("ledger-deletion", "status")
    assert refused.code == 1
    assert "HTTP 401" in refused.err

    assert terminal.run("--auth-params", f"token:{TOKEN}", "ledger-deletion", "status").code == 0

    client_conf = tmp_path / "client.conf"
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    client_conf.write_text(
        "webServiceUrl=http://a-broker:8080/\n"
        "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"authParams=file://{token_file}\n"
    )
    terminal.set("PULSAR_CLIENT_CONF", str(client_conf))
    assert terminal.run("ledger-deletion", "status").code == 0

    terminal.set("PULSAR_SIDECAR_AUTH_PARAMS", "token:wrong.token.here")
    wrong = terminal.run("ledger-deletion", "status")
    assert wrong.code == 1
    assert "wrong.token.here" not in wrong.err
    assert terminal.run("--auth-params", f"token:{TOKEN}", "ledger-deletion", "status").code == 0


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize(
    ("plugin", "params"),
    [
        ("tls", "tlsCertFile:x"),
        ("tls", "tlsCertFile:/no/c,tlsKeyFile:/no/k"),
        ("basic", '{"userId":"a","password":"b"}'),
    ],
)
def test_a_credential_that_cannot_be_used_is_refused_before_anything_is_sent(
    plugin: str, params: str, terminal: Terminal
) -> None:
    ran = terminal.run("--auth-plugin", plugin, "--auth-params", params, "ledger-deletion", "status")
    assert ran.code == 1
    assert "401" not in ran.err


def test_a_client_certificate_comes_from_client_conf(terminal: Terminal, tmp_path: Path) -> None:
    own, admin = write_certificate(tmp_path, "sidecar"), write_certificate(tmp_path, "admin")
    tls = ListenerTls(own.file, own.key_file, admin.file)
    conf = tmp_path / "client.conf"
    terminal.set("PULSAR_CLIENT_CONF", str(conf))
    forms = (
        f"authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationTls\n"
        f"authParams=tlsCertFile:{admin.file},tlsKeyFile:{admin.key_file}\n",
        f"authPlugin=tls\ntlsCertificateFilePath={admin.file}\ntlsKeyFilePath={admin.key_file}\n",
        f"tlsCertificateFilePath={admin.file}\ntlsKeyFilePath={admin.key_file}\n",
    )
    with served(FakeDeletionService(), Authentication(certificates=True), tls=tls) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url.replace("http:", "https:"))
        for form in forms:
            conf.write_text(f"tlsTrustCertsFilePath={own.file}\n{form}")
            ran = terminal.run("ledger-deletion", "status")
            assert (ran.code, ran.err) == (0, "")
        conf.write_text(f"tlsTrustCertsFilePath={own.file}\n")
        assert "HTTP 401" in terminal.run("ledger-deletion", "status").err


def test_oauth2_client_credentials_come_from_client_conf(terminal: Terminal, tmp_path: Path) -> None:
    key, conf = tmp_path / "key.json", tmp_path / "client.conf"
    key.write_text('{"client_id": "cli", "client_secret": "s3cret"}')
    terminal.set("PULSAR_CLIENT_CONF", str(conf))
    with running_issuer() as issuer:
        now = SystemClock().now_ms() // 1000
        token = issuer.token({"sub": "admin", "aud": "sidecar", "exp": now + 60})
        issuer.answers["/token"] = json.dumps({"access_token": token, "expires_in": 60}).encode()
        params = json.dumps({"issuerUrl": issuer.url, "privateKey": f"file://{key}", "audience": "sidecar"})
        conf.write_text(
            f"authPlugin=org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2\nauthParams={params}\n"
        )
        clock = SystemClock()
        keys = OpenIdIssuers([issuer.url], clock, KeyCaching(), None)
        open_id = OpenIdVerifier(OpenIdRules([issuer.url], ["sidecar"]), keys, clock)
        with served(FakeDeletionService(), Authentication(open_id=open_id)) as server:
            terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
            ran = terminal.run("ledger-deletion", "status")
            assert (ran.code, ran.err) == (0, "")
            issuer.answers["/token"] = None
            failed = terminal.run("ledger-deletion", "status")
    assert failed.code == 1
    assert "answered 500" in failed.err
    assert "s3cret" not in failed.err


@pytest.mark.parametrize(
    ("params", "token"),
    [("token:abc", "abc"), ("abc", "abc"), ('{"token": "abc"}', "abc"), (None, None), ("", None)],
)
def test_tokens_are_written_as_in_client_conf(params: str | None, token: str | None) -> None:
    for plugin in (None, "token"):
        sent = credentials_of(ClientConf(plugin, params)).http_headers().get("Authorization")
        assert sent == (None if token is None else f"Bearer {token}")


@pytest.mark.parametrize(
    "params", ["token:", "token:a b", "file:///no/such", "{", "{}", '{"token": 7', "token:ä", "a\nb"]
)
def test_params_without_a_token_are_refused_and_not_shown(params: str) -> None:
    with pytest.raises(SidecarError) as raised:
        credentials_of(ClientConf("token", params)).http_headers()
    assert "a b" not in str(raised.value)


@pytest.mark.parametrize("timeout", ["x", "0", "-1", "nan", "inf", "1e6"])
def test_invalid_timeout_is_refused(timeout: str, terminal: Terminal) -> None:
    refused = [terminal.run("--request-timeout", timeout, "ledger-deletion", "status")] if timeout != "x" else []
    terminal.set("PULSAR_SIDECAR_REQUEST_TIMEOUT", timeout)
    for ran in (*refused, terminal.run("ledger-deletion", "status")):
        assert (ran.code, "below 86400" in ran.err) == (1, True)


def test_the_timeout_on_the_command_line_comes_first(terminal: Terminal) -> None:
    terminal.set("PULSAR_SIDECAR_REQUEST_TIMEOUT", "x")
    with served(FakeDeletionService()) as server:
        assert (
            terminal.run("--admin-url", server.url, "--request-timeout", "1e3", "ledger-deletion", "status").code == 0
        )


def test_the_systems_authorities_are_not_loaded_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> ssl.SSLContext:
        raise AssertionError("the system's authorities were loaded")

    monkeypatch.setattr("pulsar_sidecar.model.tls.ssl.create_default_context", load)
    SidecarClient(
        "http://127.0.0.1:8750", ClientCredentials(), 1.0, trusted=None, allow_insecure=False, verify_hostname=True
    )


def test_help_answers_without_loading_clients_and_servers() -> None:
    code = (
        "import sys\n"
        "from pulsar_sidecar.__main__ import programs\n"
        "from pulsar_sidecar.bootstrap.commands import command_line\n"
        "try:\n    command_line()(['--help'], obj=programs())\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'pydantic', 'fastapi', 'requests', 'pulsar', 'kazoo', 'structlog', 'jwt', 'pyarrow', 'ssl'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(','.join(sorted(heavy)) or 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "ledger-deletion" in ended.stdout


def test_serve_has_a_flag_for_every_setting(terminal: Terminal, tmp_path: Path) -> None:
    ran = terminal.run(
        "serve", "--config", str(tmp_path / "c"), "--metadata-store-url", "zk:h", "--topic-two-phase-deletion-enabled",
        "--no-tls-enable-hostname-verification", "--two-phase-deletion-batch-size", "5",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    ((flags, config),) = terminal.served
    assert config == tmp_path / "c"
    assert {name: text for name, text in flags.items() if text is not None} == {
        "metadata_store_url": "zk:h",
        "topic_two_phase_deletion_enabled": "true",
        "tls_enable_hostname_verification": "false",
        "two_phase_deletion_batch_size": "5",
    }
