"""Undelete: until bookies collect a deleted ledger, writing its metadata back brings it back.

BookKeeper's delete removes the metadata node only; a bookie drops the entries at its next garbage collection after
``gcWaitTime`` (15 minutes in Pulsar's default). The outcome topic keeps the node's bytes.
"""

from collections.abc import Iterator

from pulsar_sidecar.ledger_deletion.outcomes import KeptLedger, kept_ledgers
from pulsar_sidecar.ledger_deletion.ports import DeletionTopics
from pulsar_sidecar.ledger_deletion.protect import protect
from pulsar_sidecar.ledger_deletion.service import Undeleted
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_ownership.compaction import LedgerEntries
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore


def undelete(
    store: MetadataStore,
    entries: LedgerEntries,
    topics: DeletionTopics,
    ledger_id: LedgerId,
    *,
    since_ms: int,
    force: bool,
    protection_ms: int,
    steps: Steps,
) -> Undeleted:
    """Write back the metadata of a ledger that was deleted after ``since_ms``, and protect it from now on.

    Raises:
        NotFoundError: the outcome topic has no deletion of it since then.
        ConflictError: the ledger exists, or bookies no longer hold its entries and ``force`` is not given.
    """
    kept = _last_kept(topics, ledger_id, since_ms)
    if kept is None:
        raise NotFoundError(f"the outcome topic has no deletion of ledger {ledger_id} in the time that was searched")
    if store.read(kept.path) is not None:
        raise ConflictError(f"ledger {ledger_id} exists; there is nothing to bring back")
    readable = _readable(entries, kept)
    if not readable and not force:
        raise ConflictError(
            f"bookies no longer hold the entries of ledger {ledger_id}, or did not answer; "
            "force brings back its metadata only"
        )
    protected_until_ms = store.now_ms() + protection_ms
    with steps.taking(Step.LEDGER_PROTECTED):
        protect(store, ledger_id, protected_until_ms)
    try:
        with steps.taking(Step.LEDGER_BROUGHT_BACK):
            store.create(kept.path, kept.metadata)
    except AlreadyExistsError as error:
        raise ConflictError(f"ledger {ledger_id} came back in this moment") from error
    return Undeleted(ledger_id, readable, protected_until_ms)


def _readable(entries: LedgerEntries, kept: KeptLedger) -> bool:
    try:
        return entries.readable(kept.ledger_id, decode_ledger_metadata(kept.metadata))
    except TemporaryError:
        return False


def _last_kept(topics: DeletionTopics, ledger_id: LedgerId, since_ms: int) -> KeptLedger | None:
    # Only a thorough reading can say that there is none.
    for quickly in (True, False):
        found = [kept for kept in _all_kept(topics, since_ms, quickly=quickly) if kept.ledger_id == ledger_id]
        if found:
            return found[-1]
    return None


def _all_kept(topics: DeletionTopics, since_ms: int, *, quickly: bool) -> Iterator[KeptLedger]:
    for payload in topics.outcomes_since(since_ms, quickly=quickly):
        try:
            yield from kept_ledgers(payload)
        except UndecodableError:
            continue
