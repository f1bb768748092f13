"""``pulsar-sidecar serve`` as a process of its own: TLS, tokens, its log, and its end."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jwt
import requests
from pulsar_sidecar.local_cluster.processes import free_ports

from tests.cluster.certificates import write_certificate
from tests.cluster.choosing import PROJECT
from tests.cluster.patience import OPERATION_SECONDS, PATIENCE_SECONDS, NotInTime, until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import CommandAnswer, inherited_environment, run_command

SECRET = b"an integration test's key: 32 bytes or more"
TOKEN = jwt.encode({"sub": "admin"}, SECRET, algorithm="HS256")


@dataclass(slots=True)
class Sidecar:
    url: str
    process: subprocess.Popen[bytes]
    log: Path
    certificate: Path

    def get(self, path: str, token: str | None = TOKEN) -> requests.Response:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return requests.get(self.url + path, headers=headers, verify=str(self.certificate), timeout=OPERATION_SECONDS)

    def run(self, *arguments: str) -> CommandAnswer:
        """Run the command line against this sidecar."""
        connection = ["--admin-url", self.url, "--tls-trust-cert-path", str(self.certificate)]
        token = {"PULSAR_SIDECAR_AUTH_PARAMS": f"token:{TOKEN}"}
        return run_command(*connection, "--output", "json", *arguments, **token)


@contextmanager
def serving(cluster: ClusterUnderTest, directory: Path, *flags: str) -> Iterator[Sidecar]:
    """Yield a sidecar with TLS and tokens, configured by a file; killed at the end if it still runs."""
    certificate = write_certificate(directory, "sidecar")
    (directory / "token.key").write_bytes(SECRET)
    (port,) = free_ports(1)
    addresses = cluster.addresses
    config = directory / "sidecar.conf"
    config.write_text(
        f"listen=127.0.0.1:{port}\n"
        f"listenTlsCertificateFilePath={certificate.file}\nlistenTlsKeyFilePath={certificate.key_file}\n"
        f"webServiceUrl={addresses.web_service_urls[0]}\n"
        f"brokerServiceUrl={addresses.broker_service_url}\n"
        f"metadataStoreUrl={addresses.metadata_store_url}\n"
        "authenticationEnabled=true\n"
        f"tokenSecretKey=file://{directory}/token.key\n"
        "superUserRoles=admin\n"
        "logLevel=DEBUG\n"
    )
    log = directory / "sidecar.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pulsar_sidecar", "serve", "--config", str(config), *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=PROJECT,
            env=inherited_environment(),
        )
    try:
        sidecar = Sidecar(f"https://127.0.0.1:{port}", process, log, certificate.file)
        wait_until_ready(sidecar)
        yield sidecar
    finally:
        process.kill()
        process.wait()


def wait_until_ready(sidecar: Sidecar) -> None:
    def is_ready() -> bool:
        assert sidecar.process.poll() is None, sidecar.log.read_text()
        try:
            return sidecar.get("/readyz", None).status_code == 200
        except requests.ConnectionError:
            return False  # not listening yet

    try:
        until(is_ready, "the sidecar is ready")
    except NotInTime as error:
        raise NotInTime(f"{error}\n{sidecar.log.read_text()}") from None


def test_a_sidecar_with_tls_and_tokens_from_start_to_end(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    with serving(cluster, tmp_path, "--topic-two-phase-deletion-enabled") as sidecar:
        assert sidecar.get("/admin/v2/ledger-deletion/status", None).status_code == 401
        assert sidecar.get("/admin/v2/ledger-deletion/status", TOKEN[:-2]).status_code == 401
        assert sidecar.get("/metrics", None).status_code == 200

        status = sidecar.run("ledger-deletion", "status").json
        assert status["enabled"] is True
        assert sidecar.url in [instance["advertisedUrl"] for instance in status["instances"]]

        never_was = sidecar.run("topics", "delete", "persistent://public/default/never-was")
        assert never_was.exit_code == 1
        assert "HTTP 404" in never_was.stderr
        appended = sidecar.run(
            "ledger-deletion", "append", str(2**62), "--topic", "persistent://public/default/never-was"
        )
        assert appended.json == {"sent": [2**62], "notSent": []}

        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(PATIENCE_SECONDS) == 0
        lines = [json.loads(line) for line in sidecar.log.read_text().splitlines()]
        assert lines[-1]["event"] == "stopped"
        assert [line["pulsar"] for line in lines if "pulsar" in line] == [cluster.addresses.version]
        assert [line for line in lines if "exception" in line or line["level"] in ("error", "critical")] == []
        for secret in (TOKEN, TOKEN.rpartition(".")[2], SECRET.decode()):
            assert secret not in sidecar.log.read_text()


def test_while_the_feature_is_off_nothing_is_recorded(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    with serving(cluster, tmp_path) as sidecar:
        assert sidecar.run("ledger-deletion", "status").json["enabled"] is False
        for refused in (
            sidecar.run("ledger-deletion", "append", "1", "--topic", "orders"),
            sidecar.run("topics", "delete", "orders"),
            sidecar.run("topics", "delete-ledger", "orders", "-l", "1"),
        ):
            assert refused.exit_code == 1
            assert "topicTwoPhaseDeletionEnabled" in refused.stderr
            assert "HTTP 405" in refused.stderr


def test_a_port_that_is_taken_is_reported_before_anything_starts(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen, store = f"127.0.0.1:{taken.getsockname()[1]}", cluster.addresses.metadata_store_url
        ended = run_command("serve", "--listen", listen, "--metadata-store-url", store)
    assert ended.exit_code == 1
    assert "cannot listen" in ended.stderr
