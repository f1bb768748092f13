"""A ZooKeeper with access control lists, SASL and TLS: who may read what, over which connection."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kazoo.security import ACL, make_acl, make_digest_acl
from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreTls, WalkOptions, parse_credential
from pulsar_sidecar.adapters.metadata_stores import latency_probe
from pulsar_sidecar.adapters.zookeeper.four_letter_words import zookeeper_server
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import ZooKeeperWalk
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

from tests.cluster.certificates import Certificate, write_certificate
from tests.cluster.patience import until
from tests.contract.metadata_store_servers import raw_client, without_kazoo_log

CLOCK = SystemClock()
DIGEST, SASL = "digest:sidecar:s3cret", "sasl:sidecar:s3cret"
CREDENTIALS = {"digest": DIGEST, "sasl": SASL}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server with a plain port and a TLS port, and a node for each kind of credential."""

    url: str
    tls_url: str
    tls: StoreTls
    stranger: Certificate


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    server, client, stranger = (write_certificate(directory, name) for name in ("server", "client", "stranger"))
    key_store = directory / "server.pem"
    key_store.write_bytes(server.key_file.read_bytes() + server.file.read_bytes())
    trust_store = directory / "clients.pem"
    trust_store.write_bytes(client.file.read_bytes())
    logins = directory / "jaas.conf"
    logins.write_text(
        'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_sidecar="s3cret"; };\n'
    )
    (port,) = free_ports(1)
    spec = ClusterSpec(
        directory / "cluster",
        brokers=0,
        bookies=0,
        ends_with_starter=True,
        zookeeper_conf={
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "secureClientPort": str(port),
            "secureClientPortAddress": LOOPBACK,
            "ssl.keyStore.location": str(key_store),
            "ssl.trustStore.location": str(trust_store),
            "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        },
        java_options=(f"-Djava.security.auth.login.config={logins}",),
    )
    with LocalCluster.up(spec) as cluster:
        url = cluster.addresses().metadata_store_url
        with raw_client(url) as raw:
            acls: dict[str, ACL] = {
                "digest": make_digest_acl("sidecar", "s3cret", all=True),
                "sasl": make_acl("sasl", "sidecar", all=True),
            }
            for name, acl in acls.items():
                raw.create_async(f"/{name}", name.encode(), [acl]).get()
            raw.create_async("/many", b"").get()
            for made in [raw.create_async(f"/many/{number:05}", b"x" * 100) for number in range(5_000)]:
                made.get()
        tls = StoreTls(server.file, client.file, client.key_file)
        yield Guarded(url, f"zk:{LOOPBACK}:{port}", tls, stranger)


def opened(url: str, auth: str | None, tls: StoreTls | None = None) -> ZooKeeperMetadataStore:
    return ZooKeeperMetadataStore(
        url, CLOCK, SessionOptions(call_timeout_seconds=10, credential=parse_credential(auth), tls=tls)
    )


@pytest.mark.parametrize("over_tls", [False, True])
@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_opens_its_own_nodes(name: str, over_tls: bool, guarded: Guarded, tmp_path: Path) -> None:
    url, tls = (guarded.tls_url, guarded.tls) if over_tls else (guarded.url, None)
    file = tmp_path / "credential"
    file.write_text(CREDENTIALS[name] + "\n")
    for auth in (CREDENTIALS[name], f"file://{file}"):
        with opened(url, auth, tls) as store:
            node = store.read(f"/{name}")
            assert node is not None
            assert node.data == name.encode()
    (other,) = CREDENTIALS.keys() - {name}
    with (
        opened(url, CREDENTIALS[name], tls) as store,
        pytest.raises(TemporaryError, match="give the sidecar a credential"),
    ):
        store.read(f"/{other}")
    with opened(url, None, tls) as store, pytest.raises(TemporaryError, match="give the sidecar a credential"):
        store.read(f"/{name}")


def test_the_doctor_asks_servers_over_tls(guarded: Guarded) -> None:
    server = zookeeper_server(guarded.tls_url.removeprefix("zk:"), guarded.tls)
    assert server.mode == "standalone"


def test_a_wrong_password_is_named_and_not_shown(guarded: Guarded) -> None:
    with without_kazoo_log(), opened(guarded.url, "sasl:sidecar:wr0ng") as store:
        for _ in range(5):  # also while kazoo's connection has ended over it, and another server is tried
            with pytest.raises(TemporaryError, match="credential") as raised:
                store.read("/sasl")
            assert "wr0ng" not in str(raised.value)
            CLOCK.wait_seconds(0.4)
    with (
        opened(guarded.url, "digest:sidecar:wr0ng") as store,
        pytest.raises(TemporaryError, match="give the sidecar a credential"),
    ):
        store.read("/digest")


def test_whole_subtrees_are_read_over_tls(guarded: Guarded) -> None:
    """Many responses at a time, of which TLS hands out several that the socket no longer shows."""
    began = CLOCK.monotonic_seconds()
    with opened(guarded.tls_url, SASL, guarded.tls) as store:
        assert len(store.children("/many") or ()) == 5_000
        nodes = store.read_many([f"/many/{number:05}" for number in range(5_000)])
        assert sum(node is not None for node in nodes) == 5_000
        made = store.create("/made", b"m" * 500_000)
        assert (store.read("/made") or made).data == b"m" * 500_000
    options = WalkOptions(parse_credential(DIGEST), tls=guarded.tls)
    walk = ZooKeeperWalk(guarded.tls_url, CLOCK, options, is_skipped=lambda path: path in ("/sasl", "/zookeeper"))
    assert sum(batch.num_rows for batch in walk.batches()) > 5_000
    assert CLOCK.monotonic_seconds() - began < 20  # a connection that overlooks a response waits for seconds each time


class Counting(AdaptiveLimit):
    probes = 0

    def observe(self, seconds: float) -> None:
        super().observe(seconds)
        self.probes += 1


@pytest.mark.parametrize("name", CREDENTIALS)
def test_the_latency_is_measured_over_tls_and_after_a_login(name: str, guarded: Guarded) -> None:
    limit = Counting(CLOCK, 2.0)
    options = SessionOptions(credential=parse_credential(CREDENTIALS[name]), tls=guarded.tls)
    probe = latency_probe(guarded.tls_url, CLOCK, options, limit)
    with closing(probe):
        probe.start()
        until(lambda: limit.probes > 0, "the latency is measured")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # kazoo leaves them to be collected
def test_strangers_are_refused_on_both_sides(guarded: Guarded, tmp_path: Path) -> None:
    untrusted = replace(guarded.tls, trusted=guarded.stranger.file)
    unknown = StoreTls(guarded.tls.trusted, guarded.stranger.file, guarded.stranger.key_file)
    for tls in (untrusted, unknown, StoreTls(guarded.tls.trusted)):
        with (
            without_kazoo_log(),
            opened(guarded.tls_url, None, tls) as store,
            pytest.raises(TemporaryError, match="no connection"),
        ):
            store.read("/many")
    broken = tmp_path / "broken.pem"
    broken.write_text("nonsense")
    with pytest.raises(InvalidInputError, match=r"broken\.pem"):
        opened(guarded.tls_url, None, replace(guarded.tls, trusted=broken))
