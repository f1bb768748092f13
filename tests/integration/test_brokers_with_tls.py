"""Brokers that admit no client without a certificate they trust: all of a sidecar's requests go over TLS."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.buckets import BUCKETS
from tests.cluster.cancelling import CANCELLING
from tests.cluster.certificates import Certificate, write_certificate
from tests.cluster.delays import SHARED, DelayedTopic, Sent, await_rest, before_due, now_ms
from tests.cluster.deletion import BROKER_CONF, Scene
from tests.cluster.oracles import Oracles, OutcomeLog
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import Workload, unique

NAMESPACE = "public/with-tls"


@dataclass(frozen=True, slots=True)
class SecuredSetup:
    """A cluster whose broker has TLS ports, and how a sidecar gets in."""

    cluster: ClusterUnderTest
    sidecars: Sidecars
    settings: dict[str, object]
    client: Certificate

    def sidecar(self, **others: object) -> SidecarProcess:
        return self.sidecars.start(**CANCELLING, **(self.settings | others))


@pytest.fixture(scope="module")
def setup(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredSetup]:
    directory = tmp_path_factory.mktemp("tls")
    broker, client = write_certificate(directory, "broker"), write_certificate(directory, "client")
    binary_port, web_port = free_ports(2)
    broker_conf = {
        **BROKER_CONF,
        **BUCKETS,
        "brokerServicePortTls": str(binary_port),
        "webServicePortTls": str(web_port),
        "tlsCertificateFilePath": str(broker.file),
        "tlsKeyFilePath": str(broker.key_file),
        "tlsTrustCertsFilePath": str(client.file),
        "tlsRequireTrustedClientCertOnConnect": "true",
    }
    settings: dict[str, object] = {
        "web_service_url": f"https://{LOOPBACK}:{web_port}",
        "broker_service_url": f"pulsar+ssl://{LOOPBACK}:{binary_port}",
        "tls_trust_certs_file_path": broker.file,
    }
    with (
        special_cluster(broker_conf=broker_conf) as cluster,
        contextlib.closing(Sidecars(cluster.addresses, directory)) as sidecars,
    ):
        yield SecuredSetup(cluster, sidecars, settings, client)


def _shown(certificate: Certificate) -> dict[str, object]:
    """Return the identity that client.conf sets for every connection, whatever the sidecar's own."""
    return {"tls_certificate_file_path": certificate.file, "tls_key_file_path": certificate.key_file}


def _as_client(certificate: Certificate) -> dict[str, object]:
    return {
        "auth_plugin": "tls",
        "auth_params": f"tlsCertFile:{certificate.file},tlsKeyFile:{certificate.key_file}",
    }


@pytest.mark.parametrize("identity", [_shown, _as_client])
def test_a_topic_and_what_was_left_behind_are_deleted(
    setup: SecuredSetup, identity: Callable[[Certificate], dict[str, object]]
) -> None:
    with (
        contextlib.closing(Workload(setup.cluster)) as workload,
        contextlib.closing(OutcomeLog(workload)) as log,
    ):
        namespace = f"{NAMESPACE}-{unique()}"
        workload.create_namespace(namespace)
        sidecar = setup.sidecar(**identity(setup.client))
        scene = Scene(setup.cluster, workload, setup.sidecars, Oracles(workload, log), namespace)
        doomed, kept = scene.topic("doomed"), scene.topic("kept")
        workload.fill(doomed, 2)
        scene.oracles.keeps(kept, workload.fill(kept, 2))
        before = workload.ledgers(doomed).all
        left = scene.orphans(scene.topic("left"), 3)
        scene.append(sidecar, left.records())
        assert sidecar.request("DELETE", f"/admin/v2/{workload.of_topic(doomed)}").status_code == 204
        scene.oracles.wait_for_finals(left.all)
        assert not workload.existing(left.all | before)
        scene.oracles.check(sidecar)
        sidecar.kill()


def test_delayed_messages_are_cancelled_and_proven_stored(setup: SecuredSetup) -> None:
    sidecar = setup.sidecar(**_shown(setup.client))
    name = parse_topic_name(f"persistent://public/default/delays-{unique()}")
    with contextlib.closing(DelayedTopic(setup.cluster.addresses, name)) as topic:
        topic.subscribe("s", SHARED)
        with topic.consuming("s", SHARED) as deliveries:

            def statuses(sent: list[Sent]) -> set[str]:
                one = topic.cancel(sidecar, sent[0], wait="persisted").headers["X-Pulsar-Sidecar-Proof"]
                rest = topic.cancel_all(sidecar, sent[1:], wait="persisted")
                return {one} | {status["proof"] for line in rest for status in line["verdicts"]}

            def cancelled(due: int) -> tuple[int, list[Sent]]:
                """Return the due time and the messages, the first thirty of which are durably cancelled."""
                sent = topic.send(60, due)
                # A request's wait for that proof has an end; a caller that needs it retries.
                until(
                    lambda: statuses(sent[:30]) == {"PERSISTED"}, "the statuses are PERSISTED", (due - now_ms()) / 1000
                )
                return due, sent

            due, sent = before_due(cancelled, (15_000, 60_000, 240_000))
            await_rest(deliveries, {one.number for one in sent[30:]}, due)
            assert not deliveries.numbers & {one.number for one in sent[:30]}
    sidecar.kill()


def test_untrusted_sidecar_certificate_is_reported(setup: SecuredSetup, tmp_path: Path) -> None:
    stranger = setup.sidecars.launch(**CANCELLING, **(setup.settings | _as_client(write_certificate(tmp_path, "no"))))
    until(lambda: "TLS failed (" in stranger.whole_log, "it says why it cannot ask the broker")
    assert (
        "check tlsTrustCertsFilePath, the client certificate (tlsCertificateFilePath, authParams)" in stranger.whole_log
    )
    assert not stranger.is_ready
    stranger.kill()
