"""Ledgers that are written once and closed, made as a BookKeeper client makes them (``LedgerCreateOp``).

Invariant: the writer returns a ledger's id only after every bookie of every write set has stored its entries and the
metadata is CLOSED, with that end. After any earlier failure the writer deletes the ledger's node, or the error names
the leaked ledger. A ledger whose writer died stays OPEN and no node names it: the audit and the watch for leaked
ledgers find it.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Final

from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import stored_entry
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType, LedgerMetadata, LedgerSegment, LedgerState
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, READ_ONLY_BOOKIES, available_bookies_path, ledger_path
from pulsar_sidecar.reports.formatting import format_count

MOST_ENTRY_BYTES: Final = 5 * 1024 * 1024
"""``nettyMaxFrameSizeBytes`` as Pulsar's ``bookkeeper.conf`` sets it, without a payload's overhead."""
_NO_ENTRY = EntryId(-1)
_ID_TRIES = 5
_DISCARD_TRIES = 3


@dataclass(frozen=True, slots=True)
class Replication:
    """Replication of a ledger: the number of bookies in its ensemble, and of those that hold each entry.

    ``ack_quorum_size`` is only recorded: the writer waits for the whole write quorum.
    """

    ensemble_size: int = 2
    write_quorum_size: int = 2
    ack_quorum_size: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum_size <= self.write_quorum_size <= self.ensemble_size:
            raise InvalidInputError(
                f"an ensemble of {self.ensemble_size} with a write quorum of {self.write_quorum_size} and an "
                f"acknowledgement quorum of {self.ack_quorum_size} are inconsistent; check managedLedgerDefault*"
            )


@dataclass(frozen=True, slots=True)
class LedgerWriter:
    """Writer of whole ledgers with empty passwords and CRC32C digests; safe for use by several threads.

    It chooses bookies at random, from as many racks as there are (``/bookies``), and ignores placement policies.
    """

    _store: MetadataStore
    _next_id: Callable[[], LedgerId]
    _bookies: BookieConnections
    _root: str = DEFAULT_LEDGERS_ROOT

    def write(
        self, payloads: Sequence[bytes], custom_metadata: Mapping[str, bytes], replication: Replication
    ) -> LedgerId:
        """Write these entries to a new ledger, close it, and return its id.

        Bookies that fail are replaced, as long as there are enough others.

        Raises:
            InvalidInputError: there are no entries, or one is larger than bookies take.
            TemporaryError: too few bookies, or one of them or the store failed; no ledger remains.
            OutcomeUnknownError: an unneeded ledger may remain; the text has its id.
        """
        if not payloads or max(map(len, payloads)) > MOST_ENTRY_BYTES:
            raise InvalidInputError(
                f"a ledger needs at least one entry, and entries of at most {MOST_ENTRY_BYTES} bytes; lower the "
                "setting that makes them larger"
            )
        failed: dict[BookieId, str] = {}
        while True:
            ensemble = self._ensemble(replication.ensemble_size, failed)
            metadata = LedgerMetadata(
                state=LedgerState.OPEN,
                ensemble_size=replication.ensemble_size,
                write_quorum_size=replication.write_quorum_size,
                ack_quorum_size=replication.ack_quorum_size,
                length_bytes=0,
                last_entry_id=_NO_ENTRY,
                segments=(LedgerSegment(EntryId(0), ensemble),),
                custom_metadata=custom_metadata,
                digest_type=DigestType.CRC32C,
            )
            ledger_id, node = self._create(metadata)
            try:
                failures = self._add(ledger_id, metadata, payloads)
                if not failures:
                    self._close(node, metadata, payloads)
                    return ledger_id
            except BaseException as error:
                self._discard(ledger_id, custom_metadata, error)
                raise
            failed |= failures
            self._discard(ledger_id, custom_metadata, TemporaryError(_joined(failures)))

    def _ensemble(self, size: int, failed: Mapping[BookieId, str]) -> tuple[BookieId, ...]:
        registered = self._store.children(available_bookies_path(self._root)) or []
        writable = [BookieId(name) for name in registered if name != READ_ONLY_BOOKIES and name not in failed]
        if len(writable) < size:
            failures = f" ({_joined(failed)})" if failed else ""
            raise TemporaryError(
                f"a ledger needs {format_count(size, 'bookie')}, and {len(writable)} can be written to{failures}; "
                "start more bookies, or lower managedLedgerDefaultEnsembleSize"
            )
        random.shuffle(writable)
        racks = self._racks()
        by_rack: defaultdict[str, list[BookieId]] = defaultdict(list)
        for bookie in writable:
            by_rack[racks.get(bookie, "")].append(bookie)
        taken_in_turn = chain.from_iterable(zip_longest(*by_rack.values()))
        return tuple([bookie for bookie in taken_in_turn if bookie is not None][:size])

    def _racks(self) -> Mapping[str, str]:
        """Return the racks by bookie (``BookiesRackConfiguration``): groups of bookies, each with its rack."""
        node = self._store.read("/bookies")
        try:
            groups = json.loads(node.data) if node is not None and node.data else {}
            return {bookie: str(info["rack"]) for group in groups.values() for bookie, info in group.items()}
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise TemporaryError(f"the racks in /bookies cannot be read ({error!r:.200}); correct them") from error

    def _create(self, metadata: LedgerMetadata) -> tuple[LedgerId, Node]:
        data = encode_ledger_metadata(metadata)
        for _ in range(_ID_TRIES):
            ledger_id = self._next_id()
            try:
                return ledger_id, self._store.create(ledger_path(ledger_id, self._root), data)
            except AlreadyExistsError:
                continue  # As BookKeeper does: the counter was reset.
            except OutcomeUnknownError as error:
                self._discard(ledger_id, metadata.custom_metadata, error)
                raise TemporaryError(f"ledger {ledger_id} was not created: {error}") from error
        raise TemporaryError(f"{_ID_TRIES} new ledger ids were already in use; check {self._root}/idgen")

    def _add(self, ledger_id: LedgerId, metadata: LedgerMetadata, payloads: Sequence[bytes]) -> Mapping[BookieId, str]:
        """Store each entry on its write quorum; return the bookies that failed, with the reasons."""
        [segment] = metadata.segments
        shares: dict[BookieId, list[tuple[EntryId, bytes]]] = {bookie: [] for bookie in segment.ensemble}
        length_bytes = 0
        for entry_id, payload in enumerate(payloads):
            length_bytes += len(payload)
            entry = stored_entry(ledger_id, EntryId(entry_id), payload, length_bytes=length_bytes)
            # ``RoundRobinDistributionSchedule``
            for rank in range(metadata.write_quorum_size):
                shares[segment.ensemble[(entry_id + rank) % metadata.ensemble_size]].append((EntryId(entry_id), entry))
        with ThreadPoolExecutor(metadata.ensemble_size, "ledger-writer") as threads:
            failures = threads.map(lambda bookie: self._failure(bookie, ledger_id, shares[bookie]), segment.ensemble)
            return {bookie: why for bookie, why in zip(segment.ensemble, failures, strict=True) if why is not None}

    def _failure(self, bookie: BookieId, ledger_id: LedgerId, entries: Sequence[tuple[EntryId, bytes]]) -> str | None:
        try:
            self._bookies.add_all(bookie, ledger_id, entries)
        except TemporaryError as error:
            return str(error)
        return None

    def _close(self, node: Node, metadata: LedgerMetadata, payloads: Sequence[bytes]) -> None:
        closed = replace(
            metadata,
            state=LedgerState.CLOSED,
            last_entry_id=EntryId(len(payloads) - 1),
            length_bytes=sum(map(len, payloads)),
        )
        try:
            self._store.write(node.path, encode_ledger_metadata(closed), node.version)
        except (ConflictError, NotFoundError, OutcomeUnknownError) as error:
            # A recovery after a writer died, or our own write whose response was lost, may have closed it with this
            # end.
            found = self._store.read(node.path)
            if found is None or decode_ledger_metadata(found.data) != closed:
                raise TemporaryError(f"a new ledger could not be closed: {error}") from error

    def _discard(self, ledger_id: LedgerId, custom_metadata: Mapping[str, bytes], cause: BaseException) -> None:
        """Delete an unfinished ledger of ours; raise `OutcomeUnknownError` if it may remain."""
        path = ledger_path(ledger_id, self._root)
        failure: object = "it keeps changing"
        for _ in range(_DISCARD_TRIES):
            try:
                node = self._store.read(path)
                if node is None or decode_ledger_metadata(node.data).custom_metadata != custom_metadata:
                    return
                result = self._store.delete(path, node.version, node.modified_order)
                if result in (DeletionResult.DELETED, DeletionResult.GONE):
                    return
            except SidecarError as error:
                failure = error
        raise OutcomeUnknownError(
            f"ledger {ledger_id} is half written ({cause}) and may be left ({failure}); nothing uses it: "
            "the audit reports it when it is old enough"
        ) from cause


def _joined(failures: Mapping[BookieId, str]) -> str:
    return "; ".join(failures.values())
