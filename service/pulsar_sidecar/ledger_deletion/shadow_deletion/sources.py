"""Whether every ledger that a shadow's sources list is there: asked before the first change and after the last."""

from collections.abc import Iterable, Sequence

from pulsar_sidecar.ledger_deletion.service import SourceCheck
from pulsar_sidecar.ledger_ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ledger_ownership.references import managed_ledger_references
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName


def check_sources(store: MetadataStore, sources: Sequence[TopicName], ledgers_root: str) -> SourceCheck:
    """What BookKeeper's metadata has of the ledgers that the sources' lists name.

    Ledgers that live in tiered storage only are left out: nothing of theirs is in BookKeeper.
    """
    count, missing, gone = 0, list[LedgerId](), list[TopicName]()
    for source in sources:
        listed = _listed(store, source)
        if listed is None:
            gone.append(source)
            continue
        count += len(listed)
        missing += _missing(store, source, listed, ledgers_root)
    return SourceCheck(count, tuple(sorted(missing)), tuple(gone))


def _missing(store: MetadataStore, source: TopicName, listed: Iterable[LedgerId], root: str) -> set[LedgerId]:
    ordered = sorted(listed)
    nodes = store.read_many([ledger_path(ledger_id, root) for ledger_id in ordered])
    absent = {ledger_id for ledger_id, node in zip(ordered, nodes, strict=True) if node is None}
    # A broker that trims shortens the list before it deletes a ledger: what the list still names is missing.
    return absent & (_listed(store, source) or set()) if absent else absent


def _listed(store: MetadataStore, source: TopicName) -> set[LedgerId] | None:
    node = store.read(managed_ledger_path(source.managed_ledger_name))
    if node is None:
        return None
    ledgers = managed_ledger_references(node.data).ledgers
    return {
        ledger_id
        for ledger_id, reference in ledgers.items()
        if reference.offload is None or not reference.offload.bookkeeper_deleted
    }
