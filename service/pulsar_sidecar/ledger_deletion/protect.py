"""The time during which nothing deletes a ledger that ``undelete`` brought back, so that an operator can relink it.

Each protection is a node of its own, made before the ledger's node: whoever sees the ledger sees its protection too,
on every sidecar and after every restart.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from pulsar_sidecar.ledger_deletion.service import ProtectedLedger
from pulsar_sidecar.model.errors import AlreadyExistsError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node

PROTECTIONS = "/pulsar-sidecar/ledger-deletion/protections"
UNKNOWN_END = 2**62
"""What is written in the node cannot be read: protected until an operator ends it."""


def protection_path(ledger_id: LedgerId) -> str:
    """The node that protects one ledger."""
    return f"{PROTECTIONS}/{ledger_id}"


def protect(store: MetadataStore, ledger_id: LedgerId, until_ms: int) -> None:
    """Protect a ledger until then, by the store's clock.

    A protection that is over keeps its node until its own ledger is protected anew or `end_protection` removes it:
    nobody else may, since another sidecar may be protecting that ledger anew at the same moment.
    """
    path, data = protection_path(ledger_id), str(until_ms).encode()
    try:
        store.create(path, data)
    except AlreadyExistsError as error:
        node = store.read(path)
        if node is None:
            raise TemporaryError(f"the protection of ledger {ledger_id} changed in this moment; try again") from error
        store.write(path, data, node.version)


def end_protection(store: MetadataStore, ledger_id: LedgerId) -> bool:
    """Whether there was a protection; then it is over.

    Raises:
        OutcomeUnknownError: the metadata store's answer was lost.
    """
    result = store.delete(protection_path(ledger_id))
    if result is DeletionResult.UNKNOWN:
        raise OutcomeUnknownError(
            f"the metadata store did not say whether the protection of ledger {ledger_id} ended; ask for it again"
        )
    return result is DeletionResult.DELETED


def protections(store: MetadataStore) -> list[ProtectedLedger]:
    """All of them, those that are over as well."""
    return _read(store, (LedgerId(int(name)) for name in store.children(PROTECTIONS) or () if name.isdigit()))


def protected_until(store: MetadataStore, ledger_ids: Iterable[LedgerId]) -> Mapping[LedgerId, int]:
    """Until when those of the ledgers are protected that have ever been brought back: one listing, mostly empty."""
    names = frozenset(store.children(PROTECTIONS) or ())
    chosen = [ledger_id for ledger_id in ledger_ids if names and str(ledger_id) in names]
    return {each.ledger_id: each.until_ms for each in _read(store, chosen)}


def describe_end(until_ms: int) -> str:
    """The end of a protection, for people."""
    if until_ms >= UNKNOWN_END:
        return "an operator ends it"
    return datetime.fromtimestamp(until_ms / 1000, UTC).isoformat(timespec="seconds")


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
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else UNKNOWN_END
