"""Undelete: until bookies collect a deleted ledger, writing its metadata back restores it.

BookKeeper's delete removes the metadata node only; a bookie drops the entries at its next garbage collection after
``gcWaitTime`` (15 minutes in Pulsar's default). The outcome topic keeps the node's bytes.

For some time nothing deletes a restored ledger, so that an operator can relink it. Each protection is a separate node,
created before the ledger's node: every sidecar that reads the ledger also reads its protection, even after a restart.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from pulsar_sidecar.features.ledger_deletion.nodes import put_node
from pulsar_sidecar.features.ledger_deletion.outcomes import LoggedLedger, logged_ledgers
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopics
from pulsar_sidecar.features.ledger_deletion.results import ProtectedLedger, UndeleteResult
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import UNKNOWN_END
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId, parse_ledger_id
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node
from pulsar_sidecar.ownership.compaction import LedgerEntries
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path

PROTECTIONS = "/pulsar-sidecar/ledger-deletion/protections"


def protection_path(ledger_id: LedgerId) -> str:
    """Return the path of the node that protects one ledger."""
    return f"{PROTECTIONS}/{ledger_id}"


def protect(store: MetadataStore, ledger_id: LedgerId, until_ms: int) -> None:
    """Protect a ledger until then, on the store's clock.

    An expired protection keeps its node until its ledger is protected again or `end_protection` removes it: nothing
    else may, since another sidecar may be protecting that ledger again at the same moment.
    """
    put_node(store, protection_path(ledger_id), str(until_ms).encode())


def end_protection(store: MetadataStore, ledger_id: LedgerId) -> bool:
    """End a ledger's protection; return True if there was one.

    Raises:
        OutcomeUnknownError: the metadata store's response was lost.
    """
    match store.delete(protection_path(ledger_id)):
        case DeletionResult.DELETED:
            return True
        case DeletionResult.GONE:
            return False
        case DeletionResult.CONFLICT | DeletionResult.UNKNOWN | DeletionResult.NOT_SENT:
            raise OutcomeUnknownError(
                f"the metadata store did not say whether the protection of ledger {ledger_id} ended; repeat the call"
            )


def protections(store: MetadataStore) -> list[ProtectedLedger]:
    """Return all protections, including expired ones."""
    ledger_ids = map(parse_ledger_id, store.children(PROTECTIONS) or ())
    return _read(store, (ledger_id for ledger_id in ledger_ids if ledger_id is not None))


def protected_until(store: MetadataStore, ledger_ids: Iterable[LedgerId]) -> Mapping[LedgerId, int]:
    """Return the ends of protection of the ledgers that were ever restored; costs one listing, mostly empty."""
    names = frozenset(store.children(PROTECTIONS) or ())
    chosen = [ledger_id for ledger_id in ledger_ids if names and str(ledger_id) in names]
    return {each.ledger_id: each.until_ms for each in _read(store, chosen)}


def _read(store: MetadataStore, ledger_ids: Iterable[LedgerId]) -> list[ProtectedLedger]:
    chosen = list(ledger_ids)
    nodes = store.read_many([protection_path(ledger_id) for ledger_id in chosen]) if chosen else []
    return [
        ProtectedLedger(ledger_id, _until_ms(node))
        for ledger_id, node in zip(chosen, nodes, strict=True)
        if node is not None
    ]


def _until_ms(node: Node) -> int:
    text = node.data.decode("ascii", "replace")
    # Fifteen digits reach beyond the calendar's last year, 9999.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 15 else UNKNOWN_END


def undelete(
    store: MetadataStore,
    entries: LedgerEntries,
    topics: DeletionTopics,
    ledger_id: LedgerId,
    *,
    since_ms: int,
    force: bool,
    protection_ms: int,
    root: str,
    steps: Steps,
) -> UndeleteResult:
    """Write back the metadata of a ledger that was deleted after ``since_ms``, and protect it from now on.

    Raises:
        NotFoundError: the outcome topic has no deletion of it since then.
        ConflictError: the ledger exists, or bookies no longer hold its entries and ``force`` is not given.
    """
    logged = last_logged(topics, ledger_id, since_ms)
    if logged is None:
        raise NotFoundError(f"the outcome topic has no deletion of ledger {ledger_id} in the searched time")
    # Any producer to the topic may have written the bytes, so their target does not come from the message.
    path = ledger_path(ledger_id, root)
    if store.read(path) is not None:
        raise ConflictError(f"ledger {ledger_id} exists; there is nothing to restore")
    try:
        readable = entries.readable(logged.ledger_id, decode_ledger_metadata(logged.metadata))
    except TemporaryError:
        readable = False
    if not readable and not force:
        raise ConflictError(
            f"bookies no longer hold the entries of ledger {ledger_id}, or did not respond; "
            "force restores its metadata only"
        )
    protected_until_ms = store.now_ms() + protection_ms
    with steps.taking(Step.LEDGER_PROTECTED):
        protect(store, ledger_id, protected_until_ms)
    try:
        with steps.taking(Step.LEDGER_BROUGHT_BACK):
            store.create(path, logged.metadata)
    except AlreadyExistsError as error:
        raise ConflictError(f"another client restored ledger {ledger_id} at the same moment") from error
    return UndeleteResult(ledger_id, readable, protected_until_ms)


def last_logged(topics: DeletionTopics, ledger_id: LedgerId, since_ms: int) -> LoggedLedger | None:
    """Return the ledger's last deletion after ``since_ms``; None if the outcome topic has none."""
    found: LoggedLedger | None = None
    # Only a full read can prove that there is none.
    for quickly in (True, False):
        for payload in topics.outcomes_since(since_ms, quickly=quickly) if found is None else ():
            with suppress(UndecodableError):
                found = next((each for each in reversed(logged_ledgers(payload)) if each.ledger_id == ledger_id), found)
    return found
