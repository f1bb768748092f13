"""A single issuer: oidc-provider's tokens at the brokers, at the sidecar, and from the commands.

The brokers verify them with ``AuthenticationProviderOpenID``.
"""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.local_cluster.processes import LOOPBACK, end, free_ports, spawn
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars, run_command

CLOCK = SystemClock()
_OIDC = "org.apache.pulsar.broker.authentication.oidc.AuthenticationProviderOpenID"
_OAUTH2 = "org.apache.pulsar.client.impl.auth.oauth2.AuthenticationOAuth2"


class Issuer:
    """oidc-provider as a process; each start signs with a new key."""

    def __init__(self, program: Path, directory: Path) -> None:
        self._program, self._directory = program, directory
        (self._port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{self._port}"

    def start(self, key_id: str, *redirect_uri: str) -> None:
        """``redirect_uri`` if people are to sign in."""
        node = shutil.which("node")
        assert node is not None
        log = self._directory / f"issuer-{key_id}.log"
        self._process = spawn(
            [node, str(self._program), str(self._port), key_id, *redirect_uri], {}, self._program.parent, log
        )
        until(lambda: "serving" in log.read_text(), "the issuer serves")

    def close(self) -> None:
        end([self._process], CLOCK)

    def params(self, client: str) -> str:
        """Return the client's ``authParams``."""
        key = self._directory / f"{client}.json"
        key.write_text(json.dumps({"client_id": client, "client_secret": f"secret of {client}"}))
        return json.dumps({"type": "client_credentials", "issuerUrl": self.url, "privateKey": f"file://{key}"})

    def token(self, client: str) -> str:
        form = {"grant_type": "client_credentials", "client_id": client, "client_secret": f"secret of {client}"}
        return str(requests.post(f"{self.url}/token", data=form, timeout=20).json()["access_token"])


@dataclass(frozen=True, slots=True)
class Guarded:
    issuer: Issuer
    cluster: ClusterUnderTest
    sidecar: SidecarProcess

    def answers(self, token: str | None) -> tuple[int, int]:
        """Return the status codes of a broker and of the sidecar."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        urls = f"{self.cluster.addresses.web_service_urls[0]}/admin/v2/tenants", f"{self.sidecar.url}{BASE}/status"
        broker, sidecar = (requests.get(url, headers=headers, timeout=30).status_code for url in urls)
        return broker, sidecar


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    directory = tmp_path_factory.mktemp("issuer")
    program = shutil.copytree(Path(__file__).with_name("oidc_provider"), directory / "program")
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm: install Node.js, whose oidc-provider is the issuer")
    installed = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund"], cwd=program, capture_output=True, text=True, check=False, timeout=300
    )
    assert installed.returncode == 0, installed.stderr
    return Issuer(program / "server.mjs", directory)


@pytest.fixture(scope="module")
def guarded(
    issuer: Issuer, special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    broker_conf = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProviders": _OIDC,
        "openIDAllowedTokenIssuers": issuer.url,
        "openIDAllowedAudiences": "pulsar",
        "openIDRequireIssuersUseHttps": "false",
        # The cluster's own readiness probe shows no identity.
        "anonymousUserRole": "anonymous",
        "superUserRoles": "admin,anonymous",
        "brokerClientAuthenticationPlugin": _OAUTH2,
        "brokerClientAuthenticationParameters": issuer.params("admin"),
    }
    settings: dict[str, object] = {
        "authentication_enabled": "true",
        "openid_allowed_token_issuers": issuer.url,
        "openid_allowed_audiences": "pulsar",
        "openid_key_id_cache_miss_refresh_seconds": 0,
        "super_user_roles": "admin",
        "auth_plugin": _OAUTH2,
        "auth_params": issuer.params("admin"),
    }
    issuer.start("first")
    with (
        contextlib.closing(issuer),
        special_cluster(broker_conf=broker_conf) as cluster,
        contextlib.closing(Sidecars(cluster.addresses, tmp_path_factory.mktemp("sidecars"))) as sidecars,
    ):
        yield Guarded(issuer, cluster, sidecars.start(**settings))


def test_brokers_and_the_sidecar_take_the_same_tokens(guarded: Guarded) -> None:
    admin, guest = guarded.issuer.token("admin"), guarded.issuer.token("guest")
    assert guarded.answers(admin) == (200, 200)
    assert guarded.answers(guest)[1] == 403
    assert guarded.answers(guest)[0] in (401, 403)
    forged = f"{admin.rpartition('.')[0]}.{guest.rpartition('.')[2]}"
    # These brokers take every caller without proof for their readiness probe.
    for unproven in (forged, None):
        assert guarded.answers(unproven)[1] == 401


def test_commands_get_their_own_token(guarded: Guarded) -> None:
    def status(client: str) -> tuple[int, str]:
        ran = run_command(
            "--admin-url", guarded.sidecar.url, "--auth-plugin", _OAUTH2,
            "--auth-params", guarded.issuer.params(client), "ledger-deletion", "status",
        )  # fmt: skip
        return ran.exit_code, ran.stderr

    assert status("admin")[0] == 0
    assert "HTTP 403" in status("guest")[1]
    unknown = status("unknown")
    assert unknown[0] != 0
    assert "invalid_client" in unknown[1]
    assert "secret of" not in unknown[1]


def test_a_new_key_of_the_issuer_counts_and_an_issuer_that_is_away_does_not_matter(guarded: Guarded) -> None:
    before = guarded.issuer.token("admin")
    assert guarded.answers(before)[1] == 200
    guarded.issuer.close()
    assert guarded.answers(before)[1] == 200
    guarded.issuer.start("second")
    after = guarded.issuer.token("admin")
    until(lambda: guarded.answers(after)[1] == 200, "the sidecar accepts the new key")
    assert guarded.answers(before)[1] == 401
    assert guarded.sidecar.is_ready
