"""The doctor's requirements of a metadata store."""

from collections.abc import Sequence

import pytest
from pulsar_sidecar.bootstrap.doctor import missing_nodes

from tests.fakes.metadata import FakeMetadataStore

IDENTITY = "/ledgers/INSTANCEID"


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        (["/admin/clusters", "/ledgers", IDENTITY], []),
        (["/admin/clusters", "/ledgers", "/ledgers/LAYOUT"], []),
        (["/admin/clusters", "/ledgers"], [IDENTITY]),
        ([], ["/admin/clusters", "/ledgers", IDENTITY]),
    ],
)
def test_either_identity_of_a_ledger_storage_is_enough(nodes: Sequence[str], missing: Sequence[str]) -> None:
    store = FakeMetadataStore()
    for path in nodes:
        store.put(path)
    assert missing_nodes(store, "/ledgers") == missing
