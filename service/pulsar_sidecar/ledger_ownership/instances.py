"""Which ledger storage a metadata store describes: BookKeeper's instance id, new with every format."""

from pulsar_sidecar.ledger_ownership.paths import instance_id_path
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import Node


def instance_id_of(node: Node | None, ledgers_root: str) -> str:
    """BookKeeper's instance id from the node at `instance_id_path`.

    A wrong ``ledgersRootPath`` would make every ledger look deleted, so its absence stops everything.

    Raises:
        TemporaryError: there is no such node.
    """
    if node is None:
        raise TemporaryError(
            f"there is no BookKeeper instance id at {instance_id_path(ledgers_root)}: "
            "check ledgersRootPath and the metadata store's address"
        )
    return node.data.decode("utf-8", "replace")
