"""A namespace's deletion with the topics in which brokers keep acknowledgements of open transactions."""

from collections.abc import Callable

import requests
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS

from tests.cluster.deduplication import Setup
from tests.cluster.patience import until
from tests.cluster.topics import unique
from tests.integration.test_deletion_of_namespaces import ledgers_in, left_of, path_of


def test_pending_acknowledgements_of_transactions_go_too(setup: Setup, transact: Callable[[str], None]) -> None:
    workload, namespace = setup.workload, f"public/t-{unique()}"
    workload.create_namespace(namespace)
    transact(f"persistent://{namespace}/orders in-transactions")
    names = workload.store.children(f"{MANAGED_LEDGERS}/{namespace}/persistent") or []
    assert any(name.endswith("__transaction_pending_ack") for name in names)
    before = ledgers_in(workload, namespace)
    until(lambda: _deleted(setup, namespace), f"the namespace is deleted\n{setup.sidecar.log()}")
    until(lambda: not workload.existing(before), f"its ledgers are deleted\n{setup.sidecar.log()}")
    assert left_of(workload, namespace) == []


def _deleted(setup: Setup, namespace: str) -> bool:
    try:
        return setup.sidecar.request("DELETE", path_of(namespace), force="true").status_code in (204, 404)
    except requests.RequestException:
        return False
