"""BookKeeper's own Java client as a process that deletes ledgers on request.

Invariant: a deletion that failed ends the benchmark.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.java_programs import JavaProgram, java_program, quiet_log_configuration

_PROGRAM = Path(__file__).with_name("DeleteLedgers.java")
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


class BookkeeperPeer:
    """A running client."""

    def __init__(self, program: JavaProgram) -> None:
        self._program = program

    @property
    def pid(self) -> int:
        return self._program.pid

    def delete(self, first: int, count: int) -> float:
        """Delete the ledgers with these ids; return the seconds that it took."""
        self._program.write_line(f"{first} {count}")
        nanoseconds, failed = self._program.read().split()
        if failed != "0":
            raise RuntimeError(f"BookKeeper's client could not delete {failed} ledgers; the figures are worthless")
        return int(nanoseconds) / 1e9


@contextmanager
def bookkeeper_peer(metadata_service_uri: str, window: int, scratch: Path) -> Iterator[BookkeeperPeer]:
    """Start one with the JVM's own defaults, and wait until it is connected.

    Args:
        metadata_service_uri: as in ``bookkeeper.conf``.
        window: calls on their way.
        scratch: an existing directory, for what it logs.
    """
    options = [*_PULSAR_DRIVERS, _QUIET, f"-Dlog4j2.configurationFile={quiet_log_configuration(scratch)}"]
    arguments = [metadata_service_uri, str(window)]
    with java_program(_PROGRAM, DEFAULT_VERSION, options, arguments, scratch / "bookkeeper-client.log") as program:
        if program.read() != "ready":
            raise RuntimeError("BookKeeper's client did not start")
        yield BookkeeperPeer(program)
