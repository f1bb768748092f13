"""Keys lead `publish` and Java's client to the same partition, so that both may publish to one topic."""

import itertools
from pathlib import Path

import requests
from pulsar_sidecar.features.publishing.messages import OutgoingMessage
from pulsar_sidecar.features.publishing.routing import HashingScheme, router

from tests.cluster.choosing import version_under_test
from tests.cluster.patience import OPERATION_SECONDS
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique
from tests.interop.java_client import java_client

KEYS = ["", "a", "order-4711", "Zürich", "日本", "\U0001f600 and \u0000", *(f"key {n}" * (n % 5) for n in range(60))]


def test_keys_lead_to_the_partition_that_java_chooses(cluster: ClusterUnderTest, tmp_path: Path) -> None:
    with java_client(version_under_test(), cluster.addresses.broker_service_url, tmp_path) as java:
        for partitions, scheme in itertools.product((3, 7), HashingScheme):
            topic = f"public/default/keys-{unique()}"
            url = f"{cluster.addresses.web_service_urls[0]}/admin/v2/persistent/{topic}/partitions"
            requests.put(url, json=partitions, timeout=OPERATION_SECONDS).raise_for_status()
            ours = router(partitions, scheme)
            chosen = [ours(OutgoingMessage(b"", key=key), 0) for key in KEYS]
            assert len(set(chosen)) == partitions
            assert chosen == java.partitions_of(KEYS, f"persistent://{topic}", scheme.value)
