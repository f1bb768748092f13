"""One sidecar of several sees to the cancellations."""

from pulsar_sidecar.delayed_delivery.workflow.service import LEADER_NODE, Leadership

from tests.fakes.metadata import FakeMetadataStore


def test_one_leads_and_another_takes_over() -> None:
    store = FakeMetadataStore()
    one, other = Leadership(store, "one"), Leadership(store, "other")
    assert one.held()
    assert one.held()
    assert not other.held()
    other.resign()
    assert one.held(), "who does not lead cannot resign for another"
    node = store.read(LEADER_NODE)
    assert node is not None
    assert node.ephemeral
    one.resign()
    assert other.held()
    assert not one.held()
