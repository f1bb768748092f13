"""Judgement of each unreferenced ledger: its status, as a pure and total function, and its rows.

Invariants: only a ledger that nothing in two complete dumps references, that did not change between them, that is old
enough by the store's clock, and whose every possible reference was read is `OrphanStatus.DELETABLE`. Engines only move
rows; this module, or one below it, computes every value in a table.
"""

import pickle
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import NO_LEDGER, Numbers
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.engine.candidates import (
    ClaimedLedger,
    LedgerSize,
    OwnerNode,
    UnattributedLedger,
    cause_of,
    evidence_of,
    path_marks,
    read_candidate,
)
from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy
from pulsar_sidecar.features.audit.results.tables import LEDGERS, ORPHAN_LEDGERS, UNATTRIBUTED_LEDGERS, OrphanStatus
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.protections import Protection
from pulsar_sidecar.reports.schemas import schema_of

_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)
WRITES = ("version", "ctime_ms", "czxid", "mzxid", "unreadable")
"""Columns of a ledger that judging reads, beside id and metadata (``value`` in `audit.results.tables.NODES`)."""

_WRITTEN_AS = ("version", "czxid", "mzxid")
EARLIER_COLUMNS = ("ledger_id", *_WRITTEN_AS, "first_seen_ms")
"""Columns of the earlier audit's orphans that judging reads; ``first_seen_ms`` is null if that audit proved nothing."""

LISTED = pa.schema([LEDGERS.field(name) for name in ("ledger_id", "metadata", *WRITES)])
"""Ledgers in the form in which they are judged."""

SIZES = schema_of("ledger_id bigint, czxid bigint, mzxid bigint, length bigint")
"""Ledgers with the order of their rows and their lengths."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Judge of unreferenced ledgers, one at a time, as of the dump's time by the store's clock.

    ``not_whole``: ledgers that lists name in tiered storage, which is known not to have them whole.
    """

    as_of_ms: int
    policy: AuditPolicy
    protection: Protection
    not_whole: frozenset[int] = frozenset()

    def unattributed(self, row: Mapping[str, Any], found: UnattributedLedger) -> dict[str, Any]:
        return {**self._shared(row, found.size), "reason": found.reason}

    def orphan(
        self,
        row: Mapping[str, Any],
        claimed: ClaimedLedger,
        nodes: Mapping[str, OwnerNode],
        earlier: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return a row of `audit.results.tables.ORPHAN_LEDGERS`, as if every guard had passed, without a number.

        ``earlier`` is the row with `EARLIER_COLUMNS` of the audit before.
        """
        owner = nodes.get(claimed.owner_path)
        topic = None if claimed.topic_path is None else nodes.get(claimed.topic_path)
        shared = self._shared(row, claimed.size)
        status, reason, first_seen_ms = self._status(row, shared["age_ms"], claimed, earlier)
        return {
            **shared,
            "standing": status.value,
            "reason": reason,
            "row": None,
            "kind": claimed.kind.value,
            "cause": cause_of(row["ledger_id"], claimed, owner, topic).value,
            "tenant": claimed.owner.tenant,
            "namespace": claimed.owner.namespace,
            "topic": claimed.owner.topic,
            "managed_ledger": claimed.managed_ledger,
            "cursor_name": claimed.cursor_name,
            "schema_id": claimed.schema_id,
            "first_seen_ms": first_seen_ms,
            "czxid": row["czxid"],
            "mzxid": row["mzxid"],
            "evidence": evidence_of(row["ledger_id"], claimed, owner, topic),
        }

    def _shared(self, row: Mapping[str, Any], size: LedgerSize | None) -> dict[str, Any]:
        ctime_ms = row["ctime_ms"]
        return {
            "ledger_id": row["ledger_id"],
            "state": None if size is None else size.state.name,
            "length_bytes": None if size is None else size.length_bytes,
            "age_ms": None if ctime_ms is None else max(0, self.as_of_ms - ctime_ms),
            "ctime_ms": ctime_ms,
            "version": row["version"],
            "metadata": row["metadata"],
        }

    def _status(
        self, row: Mapping[str, Any], age_ms: int | None, claimed: ClaimedLedger, earlier: Mapping[str, Any] | None
    ) -> tuple[OrphanStatus, str, int | None]:
        protected = self.protection.reason(claimed.kind, claimed.owner_path)
        if protected is not None:
            return OrphanStatus.UNPROVEN, protected, None
        if claimed.kind is LedgerKind.DATA and row["ledger_id"] in self.not_whole:
            reason = "its list names a copy in tiered storage, which is missing or incomplete: this may be the last one"
            return OrphanStatus.UNPROVEN, reason, None
        if age_ms is None or row["version"] is None:
            return OrphanStatus.UNPROVEN, "its age or its version is not known", None
        changed = earlier is not None and any(row[name] != earlier[name] for name in _WRITTEN_AS)
        return self.status_by_age(age_ms, None if earlier is None else earlier["first_seen_ms"], changed=changed)

    def status_by_age(
        self, age_ms: int, first_seen_ms: int | None, *, changed: bool
    ) -> tuple[OrphanStatus, str, int | None]:
        """Return the status of what nothing references, the reason, and when it was first seen unreferenced.

        ``first_seen_ms`` is of the earlier audit; ``changed`` since that one.
        """
        carried = None if changed else first_seen_ms
        first_seen_ms = self.as_of_ms if carried is None else carried
        if age_ms < self.policy.min_age_ms:
            reason = f"it is {_hours(age_ms)} old; the minimum age is {_hours(self.policy.min_age_ms)}"
            return OrphanStatus.TOO_YOUNG, reason, first_seen_ms
        if changed:
            return OrphanStatus.CHANGED, "it was written to or recreated since the earlier audit", first_seen_ms
        seen_for_ms = self.as_of_ms - first_seen_ms
        if carried is None or seen_for_ms < self.policy.look_window_ms:
            return OrphanStatus.FIRST_LOOK, self._first_look(carried, seen_for_ms), first_seen_ms
        reason = f"unreferenced and unchanged in dumps that are {_hours(seen_for_ms)} apart, and {_hours(age_ms)} old"
        return OrphanStatus.DELETABLE, reason, first_seen_ms

    def _first_look(self, carried: int | None, seen_for_ms: int) -> str:
        wanted = f"a dump {_hours(self.policy.look_window_ms)} after the first must find it unreferenced too"
        if carried is None:
            return f"no earlier audit found it unreferenced; {wanted}"
        return f"the first dump that found it unreferenced is {_hours(seen_for_ms)} older; {wanted}"


def _hours(milliseconds: int) -> str:
    return f"{milliseconds / HOUR_MS:.1f} hours"


Case = tuple[dict[str, Any], ClaimedLedger | UnattributedLedger]
"""Row of an unreferenced ledger, and the owner that its metadata names."""


def read_cases(ledgers: pa.RecordBatch) -> list[Case]:
    """Read rows with the columns of `LISTED`."""
    return [(row, read_candidate(row)) for row in ledgers.to_pylist()]


def owner_paths(cases: Iterable[Case]) -> list[str]:
    """Return the paths of the nodes that show causes, each once."""
    claims = [reading for _, reading in cases if isinstance(reading, ClaimedLedger)]
    return sorted({path for each in claims for path in (each.owner_path, each.topic_path) if path is not None})


def judge_cases(
    judge: Judge, cases: Iterable[Case], nodes: Mapping[str, OwnerNode], earlier: Mapping[int, Mapping[str, Any]]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Return `ORPHAN_LEDGERS`, without numbers, and `UNATTRIBUTED_LEDGERS`; ``earlier`` is by ledger id."""
    orphans, unattributed = [], []
    for row, reading in cases:
        if isinstance(reading, UnattributedLedger):
            unattributed.append(judge.unattributed(row, reading))
        else:
            orphans.append(judge.orphan(row, reading, nodes, earlier.get(row["ledger_id"])))
    return (
        pa.RecordBatch.from_pylist(orphans, schema=ORPHAN_LEDGERS),
        pa.RecordBatch.from_pylist(unattributed, schema=UNATTRIBUTED_LEDGERS),
    )


def withhold_deletable(orphans: _Rows, guards: str) -> _Rows:
    """Withhold the deletable rows because guards failed; ``guards`` names them."""
    deletable = is_deletable(orphans)
    for name, text in (
        ("standing", OrphanStatus.WITHHELD.value),
        ("reason", f"it would be deletable, but a guard of the whole audit did not pass: {guards}"),
    ):
        column = pc.if_else(deletable, pa.scalar(text), orphans.column(name))
        orphans = orphans.set_column(orphans.schema.names.index(name), orphans.schema.field(name), column)
    return orphans


def number_deletable(batch: pa.RecordBatch, first: int = 0) -> pa.RecordBatch:
    """Number the deletable rows of a batch from ``first``; the batch is in the order of ledger ids."""
    deletable = is_deletable(batch)
    mask = deletable.to_numpy(zero_copy_only=False)
    numbers = pa.array(np.cumsum(mask, dtype=np.int64) + (first - 1), mask=~mask)
    return batch.set_column(batch.schema.names.index("row"), batch.schema.field("row"), numbers)


def is_deletable(orphans: pa.RecordBatch | pa.Table) -> pa.Array:
    return pc.fill_null(pc.equal(orphans.column("standing"), OrphanStatus.DELETABLE.value), False)


@dataclass(frozen=True, slots=True)
class ReadLedgers:
    """Ledgers that were looked up.

    Attributes:
        sizes: `SIZES` of referenced ledgers.
        marks: `path_marks` of the candidates' owners.
        cases: candidates by their share, for `unpack_cases`; they take a tenth of the memory of `Case` objects.
    """

    sizes: pa.RecordBatch
    marks: Numbers
    cases: dict[int, bytes]


def read_ledgers(columns: ColumnReader, starts: Numbers, ledgers: pa.RecordBatch) -> ReadLedgers:
    """Read ledgers: ``ledger_id``, ``is_candidate``, and the others of `LISTED`.

    A share has the ids from one start to the next.
    """
    is_candidate = ledgers.column("is_candidate")
    listed = pa.RecordBatch.from_arrays([ledgers.column("ledger_id"), *ledgers.columns[2:]], schema=LISTED)
    cases = read_cases(listed.filter(is_candidate))
    shares = np.searchsorted(starts, [row["ledger_id"] for row, _ in cases], side="right") - 1
    packed = {
        share: zlib.compress(pickle.dumps([cases[place] for place in np.flatnonzero(shares == share)]), 1)
        for share in np.unique(shares).tolist()
    }
    marks = path_marks(pa.array(owner_paths(cases), pa.string()))
    return ReadLedgers(sizes_of(columns, listed.filter(pc.invert(is_candidate))), marks, packed)


def unpack_cases(packed: Iterable[bytes]) -> list[Case]:
    """Return the cases of one share, each ledger once, by ledger id; see `newest_sizes`."""
    cases = chain.from_iterable(pickle.loads(zlib.decompress(each)) for each in packed)  # noqa: S301  # of our workers
    ordered = sorted(cases, key=lambda case: (case[0]["ledger_id"], case[0]["czxid"] or 0, case[0]["mzxid"] or 0))
    return list({case[0]["ledger_id"]: case for case in ordered}.values())


def sizes_of(columns: ColumnReader, ledgers: pa.RecordBatch) -> pa.RecordBatch:
    order = (ledgers.column(name).fill_null(0) for name in ("czxid", "mzxid"))
    lengths = columns.ledger_lengths(ledgers.column("metadata"))
    return pa.RecordBatch.from_arrays([ledgers.column("ledger_id"), *order, lengths], schema=SIZES)


def newest_sizes(sizes: pa.Table) -> pa.Table:
    """Return each ledger's newest row: one that was deleted and recreated while the dump was taken is in it twice."""
    ids, czxids, mzxids = (sizes.column(name).to_numpy() for name in ("ledger_id", "czxid", "mzxid"))
    order = np.lexsort((mzxids, czxids, ids))
    last = np.diff(ids[order], append=NO_LEDGER) != 0
    return sizes.take(pa.array(order[last]))
