"""Evidence that outlives its sidecar: one node for each leaked copy of a ledger, until the copy is gone.

A broker that dies during a trim leaves BookKeeper's copy of a ledger and the one in tiered storage: two leaks.

In steady state there is none: a broker deletes a ledger milliseconds after its last reference, and the watch stores
evidence only of ledgers that still exist seconds later.
"""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from pulsar_sidecar.features.ledger_deletion.nodes import put_node
from pulsar_sidecar.features.ledger_deletion.record import (
    PendingDeleteLedgerInfo,
    is_signed,
    parse_record_document,
    record_document,
    record_key,
    signed,
    signing_key,
)
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.watch.control import WATCH
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node

LEAKS = f"{WATCH}/leaks"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of a ledger, or its copy in tiered storage, that was seen referenced, and then not.

    Attributes:
        record: signed record to append.
        path: node that named the ledger.
        appended_ms: time of appending, on the store's clock; None before.
        unfinished: True if the offload attempt had not succeeded, so that a broker may still be uploading the copy.
    """

    record: PendingDeleteLedgerInfo
    cause: LeakCause
    path: str
    appended_ms: int | None = None
    unfinished: bool = False

    @property
    def dereferenced_ms(self) -> int:
        """Time at which the watch saw the last reference vanish, on the store's clock."""
        return self.record.mark.dereferenced_ms or 0


@decodable
class _Kept(msgspec.Struct, frozen=True, rename="camel"):
    record: dict[str, object]
    cause: LeakCause
    path: str
    appended_ms: int | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class LeakStore:
    """Store of evidence."""

    store: MetadataStore
    steps: Steps

    def signed(self, record: PendingDeleteLedgerInfo) -> PendingDeleteLedgerInfo:
        """Return the record signed with the cluster's key, which the first caller creates."""
        return signed(record, signing_key(self.store, self.steps))

    def keep(self, evidence: Evidence) -> None:
        """Store evidence, overwriting earlier evidence of the same copy."""
        kept = _Kept(
            record_document(evidence.record), evidence.cause, evidence.path, evidence.appended_ms, evidence.unfinished
        )
        path, data = _path(record_key(evidence.record)), msgspec.json.encode(kept)
        with self.steps.taking(Step.LEAK_KEPT):
            put_node(self.store, path, data)

    def forget(self, key: str) -> None:
        """Remove the evidence of a copy that is gone or referenced again; idempotent. ``key``: `record.record_key`."""
        with self.steps.taking(Step.LEAK_FORGOTTEN):
            if self.store.delete(_path(key)) is DeletionResult.UNKNOWN:
                raise TemporaryError(f"the outcome of deleting {_path(key)} is unknown; the watch tries again")

    def all(self, known: Collection[str] = ()) -> tuple[list[Evidence], list[str]]:
        """Return the evidence under other keys than ``known``.

        Also returns the paths of nodes without evidence under this cluster's key, which have no effect.
        """
        left_out = {_path(key) for key in known}
        paths = [path for name in self.store.children(LEAKS) or () if (path := f"{LEAKS}/{name}") not in left_out]
        nodes = [node for node in self.store.read_many(paths) if node is not None] if paths else []
        key = signing_key(self.store, self.steps) if nodes else None
        found = [(node, _evidence(node, key)) for node in nodes]
        return [each for _, each in found if each is not None], [node.path for node, each in found if each is None]


def _path(key: str) -> str:
    return f"{LEAKS}/{key}"


def _evidence(node: Node, key: bytes | None) -> Evidence | None:
    try:
        kept = msgspec.json.decode(node.data, type=_Kept)
        record = parse_record_document(kept.record)
    except (msgspec.MsgspecError, InvalidInputError, RecursionError):
        return None
    if not is_signed(record, key) or record.mark.dereferenced_ms is None or node.path != _path(record_key(record)):
        return None
    return Evidence(record, kept.cause, kept.path, kept.appended_ms, kept.unfinished)
