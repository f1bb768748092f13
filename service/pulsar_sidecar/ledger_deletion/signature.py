"""Proof that this Pulsar cluster's own lists named a ledger: a signature on the record of a topic's deletion.

A record outlives the operation that wrote it, so the operation's node cannot vouch for it, and whoever may produce to
``pulsar/system`` can write any operation's id. The key is in the metadata store, in a node that anybody may read who
reaches ZooKeeper, even where an ACL protects ``/ledgers``. Every sidecar of a cluster uses the same key.
"""

import hashlib
import hmac
import secrets
from dataclasses import replace

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import AlreadyExistsError, TemporaryError
from pulsar_sidecar.model.ledgers import LedgerType
from pulsar_sidecar.model.metadata import MetadataStore

SIGNING_KEY = "/pulsar-sidecar/ledger-deletion/signing-key"
_KEY_BYTES = 32


def signing_key(store: MetadataStore, steps: Steps) -> bytes:
    """The cluster's key, made by the first sidecar that needs it.

    Raises:
        TemporaryError: the node is there and holds no key.
    """
    node = store.read(SIGNING_KEY)
    if node is None:
        try:
            with steps.taking(Step.SIGNING_KEY_CREATED):
                node = store.create(SIGNING_KEY, secrets.token_bytes(_KEY_BYTES))
        except AlreadyExistsError:
            node = store.read(SIGNING_KEY)
    if node is None or len(node.data) != _KEY_BYTES:
        raise TemporaryError(f"{SIGNING_KEY} does not hold a key of {_KEY_BYTES} bytes; delete the node")
    return node.data


def signed(record: PendingDeleteLedgerInfo, key: bytes) -> PendingDeleteLedgerInfo:
    """The record with its signature; without one where nothing tells the ledger from a later one with its id."""
    if record.ledger_type is LedgerType.LEDGER and record.mark.created_ms is None:
        return record
    return record.marked(replace(record.mark, signature=_signature(record, key)))


def is_signed(record: PendingDeleteLedgerInfo, key: bytes | None) -> bool:
    """Whether the record is word for word what this cluster's sidecars have signed."""
    given = record.mark.signature
    if key is None or len(key) != _KEY_BYTES or given is None or not given.isascii():
        return False
    return hmac.compare_digest(given, _signature(record, key))


def _signature(record: PendingDeleteLedgerInfo, key: bytes) -> str:
    unsigned = record.marked(replace(record.mark, signature=None))
    return hmac.new(key, encode_record(unsigned), hashlib.sha256).hexdigest()
