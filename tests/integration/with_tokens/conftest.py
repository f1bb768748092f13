"""One cluster for all tests of brokers that require tokens."""

from collections.abc import Iterator

import pytest

from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.tokens import TOKEN_CONF

CONF = {
    **TOKEN_CONF,
    "proxyRoles": "sidecar",
    "superUserRoles": f"{TOKEN_CONF['superUserRoles']},sidecar",
    "delayedDeliveryEnabled": "false",
}
"""The doctor warns of the last, and of nothing else."""


@pytest.fixture(scope="package")
def guarded(special_cluster: ClusterFactory) -> Iterator[ClusterUnderTest]:
    with special_cluster(bookies=2, broker_conf=CONF) as cluster:
        yield cluster
