"""The state of a migration from ZooKeeper to Oxia, as ``MigrationCoordinator`` of 4.2.4 writes it."""

import pytest
from pulsar_sidecar.ownership.migration import migration_of


@pytest.mark.parametrize("data", [None, b'{"phase":"NOT_STARTED"}', b'{"phase":"FAILED","targetUrl":"oxia://o:1/n"}'])
def test_brokers_that_stay(data: bytes | None) -> None:
    assert migration_of(data) is None


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING", "COMPLETED", "A_LATER_ONE"])
def test_brokers_that_leave(phase: str) -> None:
    migration = migration_of(f'{{"phase":"{phase}","targetUrl":"oxia://o:1/n"}}'.encode())
    assert migration is not None
    assert f"is migrating to oxia://o:1/n ({phase}" in migration


@pytest.mark.parametrize("data", [b"", b"[]", b"null", b"{", b"[" * 100_000, b"\xff", b"{}"])
def test_a_state_that_cannot_be_read_counts_as_leaving(data: bytes) -> None:
    assert "cannot be read" in (migration_of(data) or "")
