"""The brokers' migration from this metadata store to another: from ZooKeeper to Oxia, new in 4.2.

Once it is complete, brokers and bookies work on the other store, whatever their ``metadataStoreUrl`` is. Invariant:
the sidecar decides nothing on the store they left, where a ledger that is in use looks unreferenced or is missing.
"""

import json
from typing import Final

MIGRATION: Final = "/pulsar/migration-coordinator/migration"
"""``MigrationState.MIGRATION_FLAG_PATH``; brokers create it in the store that is left when a migration begins."""
_STAYS: Final = ("NOT_STARTED", "FAILED")
"""After a failure brokers work on the old store again."""


def migration_of(data: bytes | None) -> str | None:
    """Return why the sidecar must not decide on a store with this node at `MIGRATION`; None if the brokers stay on it.

    A state that cannot be read counts as a migration.
    """
    if data is None:
        return None
    try:
        state = json.loads(data)
        phase, target = state["phase"], state.get("targetUrl")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        return f"the state of a metadata migration at {MIGRATION} cannot be read"
    if phase in _STAYS:
        return None
    return (
        f"the brokers' metadata is migrating to {target} ({phase} at {MIGRATION}), and the sidecar works on "
        "ZooKeeper only"
    )
