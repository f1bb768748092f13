"""One cluster for all tests of transactions, and of deduplication whose snapshots brokers take by entries."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.deduplication import BROKER_CONF, Setup, set_up
from tests.cluster.java_programs import QUICK, java_program
from tests.cluster.plugin import ClusterFactory

PROGRAM = Path(__file__).parents[2] / "faults" / "Transactions.java"
CONF = {
    **BROKER_CONF,
    "brokerDeduplicationMaxNumberOfProducers": "3",
    "transactionCoordinatorEnabled": "true",
    "forceDeleteNamespaceAllowed": "true",
}


@pytest.fixture(scope="package")
def setup(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with special_cluster(broker_conf=CONF) as cluster, set_up(cluster, tmp_path_factory.mktemp("sidecars")) as it:
        yield it


@pytest.fixture(scope="package")
def transact(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], None]]:
    """Yield a function that hands a line to ``Transactions.java`` and waits until it is done."""
    addresses, log = setup.cluster.addresses, tmp_path_factory.mktemp("java") / "java.log"
    options, arguments = ["-Xmx128m", *QUICK], [addresses.broker_service_url]
    with java_program(PROGRAM, addresses.version, options, arguments, log) as java:

        def handed(line: str) -> None:
            java.write_line(line)
            assert java.read() == "done"

        yield handed
