"""Newest entries of ``__compaction`` cursors' ledgers, as rows.

While a topic is loaded, only these entries name its compacted ledger, and no node does (`ownership.compaction`).

Invariant: a row was true at one moment: the cursor's node and the ledger's were the same before and after the entries
were read. Whatever cannot be read is a row with the reason. An older entry is left out only if the compacted ledger
that it names is gone and the newest entry names one that exists: brokers delete the old one once the new one counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_sidecar.features.audit.results.tables import CURSOR_LEDGERS, CursorLedgerState
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerEntry
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.ownership.compaction import TAIL_ENTRIES, LedgerEntries
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import cursor_references, position_entry_compacted_ledger

_TRIES = 5
NOT_READ = "not read: the dump was taken without a connection to the live cluster"


class _MovedError(Exception):
    """Raised when the cursor or its ledger changed while it was read."""


@dataclass(frozen=True, slots=True)
class CursorLedgers:
    """Reader of compaction cursors' ledgers, one cursor after the other, from a live cluster."""

    store: MetadataStore
    entries: LedgerEntries
    ledgers_root: str

    def rows(self, cursor_path: str) -> list[dict[str, Any]]:
        """Return the rows of one cursor, at least one."""
        reason = f"it changed during each of {_TRIES} readings"
        for _ in range(_TRIES):
            try:
                return self._read(cursor_path)
            except _MovedError:
                continue
            except TemporaryError as error:
                reason = str(error)
                break
        return [row(cursor_path, CursorLedgerState.UNREADABLE, unreadable=reason)]

    def _read(self, cursor_path: str) -> list[dict[str, Any]]:
        cursor = self.store.read(cursor_path)
        if cursor is None:
            return [row(cursor_path, CursorLedgerState.NO_CURSOR)]
        ledger_id = cursor_references(cursor.data).cursor_ledger
        known = {"cursor_value": cursor.data, "cursor_version": cursor.version, "ledger_id": ledger_id}
        if ledger_id is None:
            return [row(cursor_path, CursorLedgerState.NO_LEDGER, **known)]
        ledger = self.store.read(ledger_path(ledger_id, self.ledgers_root))
        try:
            tail: Sequence[LedgerEntry] = ()
            if ledger is not None:
                tail = self.entries.read_tail(ledger_id, decode_ledger_metadata(ledger.data), TAIL_ENTRIES)
        finally:
            # Check even if the entries could not be read: a ledger that was deleted meanwhile is no obstacle.
            self._demand_unmoved(cursor, ledger)
        if ledger is None:
            return [row(cursor_path, CursorLedgerState.LEDGER_GONE, **known)]
        known["ledger_version"] = ledger.version
        if not tail:
            raise TemporaryError(f"no bookie holds an entry of the cursor's ledger {ledger_id}")
        *older, newest = tail
        meant = [*(entry for entry in older if not self._is_replaced(entry, newest)), newest]
        return [
            row(cursor_path, CursorLedgerState.READ, **known, entry_id=entry.entry_id, entry=entry.payload)
            for entry in meant
        ]

    def _is_replaced(self, older: LedgerEntry, newest: LedgerEntry) -> bool:
        try:
            before, now = (position_entry_compacted_ledger(entry.payload) for entry in (older, newest))
        except UndecodableError:
            return False
        if before is None or now is None or before == now:
            return False
        return not self._exists(before) and self._exists(now)

    def _exists(self, ledger_id: LedgerId) -> bool:
        return self.store.read(ledger_path(ledger_id, self.ledgers_root)) is not None

    def _demand_unmoved(self, cursor: Node, ledger: Node | None) -> None:
        # Check the cursor first: a broker that closes a topic writes the cursor's node before it deletes the ledger.
        if _identity(self.store.read(cursor.path)) != _identity(cursor):
            raise _MovedError
        if ledger is not None and _identity(self.store.read(ledger.path)) != _identity(ledger):
            raise _MovedError


def cursor_ledger_rows(paths: Iterable[str], live: CursorLedgers | None) -> Iterator[pa.RecordBatch]:
    """Yield one batch for each cursor, as `CURSOR_LEDGERS`; without a live cluster every row is marked unreadable."""
    for path in paths:
        rows = [row(path, CursorLedgerState.UNREADABLE, unreadable=NOT_READ)] if live is None else live.rows(path)
        yield pa.RecordBatch.from_pylist(rows, schema=CURSOR_LEDGERS)


def row(cursor_path: str, state: CursorLedgerState, **columns: object) -> dict[str, Any]:
    """Return one row; columns that are not given are null."""
    return {"cursor_path": cursor_path, "state": state.value, **columns}


def _identity(node: Node | None) -> tuple[int, int] | None:
    return None if node is None else (node.created_order, node.version)
