"""Cursors that are too large for an entry, or for a node as well: what was forecast, and what brokers then forget."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.acknowledgements.results import StoredPlace
from pulsar_sidecar.model.entry_sizes import FRAME_PADDING, max_entry_bytes
from pulsar_sidecar.model.errors import SidecarError

from tests.cluster.acknowledging import AckStateSetup, Holes, ack_state_setup, every_other, positions_in
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory

MAX_MESSAGE_SIZE = 5_120
JUTE_MAX_BUFFER = 32_768
TOO_MANY_FOR_AN_ENTRY, TOO_MANY_FOR_A_NODE = 1_100, 2_300
WRITTEN = 20
PATIENCE_MS = 1_000
SENT_AGAIN = "Connection loss while executing batch operation of 1 PUT"


@pytest.fixture(scope="module")
def small(full_run: None, special_cluster: ClusterFactory) -> Iterator[AckStateSetup]:
    """Yield brokers that store few bytes, and more ranges than fit; cursors are written at first acks and unloads."""
    conf = {
        "maxMessageSize": str(MAX_MESSAGE_SIZE),
        "managedLedgerMaxUnackedRangesToPersist": "100000",
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore": "100",
        "managedLedgerPersistIndividualAckAsLongArray": "false",
        "managedLedgerDefaultMarkDeleteRateLimit": "0.001",
        "managedLedgerCursorPositionFlushSeconds": "3600",
        "metadataStoreSessionTimeoutMillis": "10000",
    }
    with (
        special_cluster(
            broker_conf=conf,
            bookie_conf={"nettyMaxFrameSizeBytes": str(MAX_MESSAGE_SIZE + FRAME_PADDING)},
            java_options=(f"-Djute.maxbuffer={JUTE_MAX_BUFFER}",),
        ) as cluster,
        ack_state_setup(cluster, JUTE_MAX_BUFFER) as setup,
    ):
        yield setup


def dug(small: AckStateSetup, count: int) -> Holes:
    """Return a topic with this many holes, of which the broker has written only the first few."""
    holes = small.holes()
    with holes.consumer() as consumer:
        for entries in (WRITTEN, 2 * count - WRITTEN):
            holes.produce(entries)
            holes.acknowledge(consumer, every_other, PATIENCE_MS)
    return holes


def test_states_too_large_for_an_entry_are_stored_in_the_node(small: AckStateSetup) -> None:
    holes = dug(small, TOO_MANY_FOR_AN_ENTRY)
    state = small.state(holes.topic)
    assert state.max_entry_bytes == max_entry_bytes(MAX_MESSAGE_SIZE)
    assert state.entry_bytes_left < 0 < state.node_bytes_left
    assert (state.next_write, state.unload_write) == (StoredPlace.METADATA_STORE, StoredPlace.METADATA_STORE)
    assert state.after_crash.entries > state.after_unload.entries == 0
    BrokerTopicAdmin(small.rest).unload(holes.topic)
    after = small.state(holes.topic)
    assert after.stored is not None
    assert (after.stored.place, after.stored.ranges) == (StoredPlace.METADATA_STORE, TOO_MANY_FOR_AN_ENTRY)
    assert after.stored.size_bytes == state.node_bytes
    assert holes.delivered() == holes.sent - holes.acknowledged


def test_states_that_fit_nowhere_are_retried_and_lost_in_a_crash(small: AckStateSetup) -> None:
    holes = dug(small, TOO_MANY_FOR_A_NODE)
    state = small.state(holes.topic)
    assert state.node_bytes_left < 0
    assert (state.next_write, state.unload_write) == (None, None)
    assert state.after_unload.entries > TOO_MANY_FOR_A_NODE / 2
    impatient = BrokerTopicAdmin(AdminRest(small.cluster.addresses.web_service_urls, read_seconds=2.0))
    with pytest.raises(SidecarError):
        impatient.unload(holes.topic)
    until(lambda: small.cluster.log("broker-1", 1_000).count(SENT_AGAIN) > 1, "the broker sends the node again", 10)
    small.cluster.kill("broker-1")
    small.cluster.restart("broker-1")
    delivered = holes.delivered()
    assert delivered & holes.acknowledged == positions_in(state.after_unload.ranges)
    assert delivered >= holes.sent - holes.acknowledged, "nothing else is lost"
