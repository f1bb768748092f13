"""BookKeeper's own Java client as a process that deletes ledgers when it is told to.

Invariant: the process ends with the ``with`` block, and a deletion that failed ends the benchmark.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.adapters.metadata.url import parse_metadata_store_url
from service.local_cluster.addresses import ClusterAddresses
from service.local_cluster.cluster import find_software
from service.local_cluster.java import class_path
from service.local_cluster.spec import ClusterSpec

_PROGRAM = Path(__file__).with_name("DeleteLedgers.java")
_END_SECONDS = 30
_PULSAR_DRIVERS = (
    "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
)
_QUIET = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def own_driver(addresses: ClusterAddresses) -> str:
    """BookKeeper's metadata driver: one ZooKeeper request for each ledger."""
    url = parse_metadata_store_url(addresses.metadata_store_url)
    return f"zk+hierarchical://{';'.join(url.servers)}{url.chroot}/ledgers"


def pulsar_driver(addresses: ClusterAddresses) -> str:
    """The metadata driver that brokers give to BookKeeper's client: it gathers requests into multis."""
    return f"metadata-store:{addresses.metadata_store_url}"


class BookKeeperPeer:
    """A running client."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def delete(self, first: int, count: int) -> float:
        """Delete the ledgers with these ids; how many seconds it took."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{first} {count}\n")
        self._process.stdin.flush()
        nanoseconds, failed = self.read().split()
        if failed != "0":
            raise RuntimeError(f"BookKeeper's client could not delete {failed} ledgers; the figures are worthless")
        return int(nanoseconds) / 1e9

    def read(self) -> str:
        """The next line it writes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"BookKeeper's client ended with {self._process.wait(_END_SECONDS)}")
        return line.strip()


@contextmanager
def bookkeeper_peer(metadata_service_uri: str, window: int, scratch: Path) -> Iterator[BookKeeperPeer]:
    """Start one with the JVM's own defaults, and wait until it is connected.

    Args:
        metadata_service_uri: as in ``bookkeeper.conf``.
        window: calls on their way.
        scratch: an existing directory, for what it logs.
    """
    software = find_software(ClusterSpec(scratch), lambda text: None)
    command = [
        str(software.java.executable),
        *_PULSAR_DRIVERS,
        _QUIET,
        f"-Dlog4j2.configurationFile={_quiet_log_configuration(scratch)}",
        "-cp",
        class_path(software.distribution),
        str(_PROGRAM),
        metadata_service_uri,
        str(window),
    ]
    with (
        (scratch / "bookkeeper-client.log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        peer = BookKeeperPeer(process)
        if peer.read() != "ready":
            raise RuntimeError("BookKeeper's client did not start")
        try:
            yield peer
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(_END_SECONDS)


def _quiet_log_configuration(scratch: Path) -> Path:
    # Each deletion would write a line otherwise, which is no part of what is compared.
    path = scratch / "log4j2.properties"
    path.write_text("rootLogger.level = off\n")
    return path
