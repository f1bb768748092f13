"""Functions' state in BookKeeper's stream storage beside a cluster, whose ledgers only DistributedLog names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.java_programs import QUICK, JavaProgram, java_program

_LOG = "function-state.log"


class FunctionState:
    """A table of a running storage server, and its contents."""

    def __init__(self, java: JavaProgram) -> None:
        self._java = java
        self._values: dict[str, str] = {}

    def put(self, key: str, value: str) -> None:
        """Store a value; key and value have no spaces."""
        self._java.write_line(f"put {key} {value}")
        assert self._java.read() == "done"
        self._values[key] = value

    def check(self) -> None:
        """Demand that the table still has all values."""
        for key, value in self._values.items():
            self._java.write_line(f"get {key}")
            assert self._java.read() == value, key


@contextmanager
def function_state(addresses: ClusterAddresses, directory: Path) -> Iterator[FunctionState]:
    """Start a storage server with some state in its table; a bookie's own does not take ``metadata-store:``.

    Args:
        addresses: addresses of the cluster.
        directory: working directory of the server, with its log.
    """
    program = Path(__file__).with_name("FunctionState.java")
    zookeeper = addresses.metadata_store_url.removeprefix("zk:")
    with java_program(program, addresses.version, ["-Xmx256m", *QUICK], [zookeeper], directory / _LOG) as java:
        state = FunctionState(java)
        state.put("counted", "17")
        yield state
