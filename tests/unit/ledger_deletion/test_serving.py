"""What the operator's calls refuse while the sidecar is not ready."""

import pytest
from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.service import SidecarInstance
from pulsar_sidecar.ledger_deletion.workflow.runtime import Configuration, Ports
from pulsar_sidecar.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.errors import ConflictError, TemporaryError

from tests.fakes.world import World
from tests.unit.ledger_deletion.shadow_settings import setting
from tests.unit.ledger_deletion.sidecars import POLICY, RETRY_POLICY


class OtherMetadata:
    """Brokers that work on another metadata store than the sidecar."""

    def mismatch(self) -> str:
        return "the brokers' metadata store is zk:b:2181, the sidecar's is zk:a:2181"


def test_a_shadow_is_not_deleted_beside_brokers_with_other_metadata() -> None:
    made, world = setting(), World()
    before = {path: made.store.peek(path) for path in made.store.paths()}
    ports = Ports(
        clock=world.clock,
        store=made.store,
        entries=world.entries,
        owners=made.brokers,
        admin=made.brokers,
        endangered_source=lambda _topic: None,
        topics=world.topics,
        offloaded=world.offloaded,
        metadata_mismatch=OtherMetadata().mismatch,
    )
    configuration = Configuration(
        enabled=True,
        ledgers_root="/ledgers",
        policy=POLICY,
        retry_policy=RETRY_POLICY,
        rate_per_second=None,
        watchdog_late_ms=1,
        topic_deletion_wait_ms=1,
        undelete_lookback_ms=1,
        undelete_protection_ms=1,
        batch_size=1,
    )
    metrics = DeletionMetrics("local")
    service = LedgerDeletion(configuration, ports, SidecarInstance("sidecar-1", "http://a", None, 0), metrics)
    with pytest.raises(ConflictError, match="nothing is deleted: the brokers' metadata store"):
        service._runtime._work()
    with pytest.raises(TemporaryError, match="not ready"):
        service.delete_shadow(made.shadow, requested_by="me")
    assert {path: made.store.peek(path) for path in made.store.paths()} == before
