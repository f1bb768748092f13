"""The only entry to the vectorised readers, and the switch that turns them off.

Invariant: every result is the one that the exact functions give for each value alone. A value that a vectorised reader
does not understand whole is left to them, and so is every value if `ColumnReader.exact` is set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import NO_LEDGER, LedgerLists, Mask, Numbers
from pulsar_sidecar.features.audit.columnar.nodes import (
    UNKNOWN,
    find_ledgers,
    ledger_lengths,
    read_ledger_lists,
    read_plain_cursors,
    read_plain_schemas,
)
from pulsar_sidecar.features.audit.columnar.paths import (
    Owners,
    are_plain_managed_ledgers,
    are_schemas,
    ledger_ids,
    owners_of_plain_cursors,
    plain_owners_at,
    plain_owners_of,
)
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.ledger_metadata import ledger_length
from pulsar_sidecar.ownership.paths import ledger_id_of_path
from pulsar_sidecar.ownership.places import Owner, owner_at, owner_of_managed_ledger

_CURSORS_FIRST_BYTE = b"\x08"

SINGLES = pa.schema(
    [pa.field("ledger_id", pa.int64(), nullable=False)]
    + [pa.field(name, pa.string(), nullable=False) for name in ("kind", "path")]
)
"""References that are not elements of a managed ledger's list."""

CURSORS = pa.schema([pa.field("managed_ledger", pa.string()), pa.field("in_ledger", pa.bool_())])
"""Cursors by their managed ledgers' names; ``in_ledger`` is True if the position is in a ledger."""


@dataclass(frozen=True, slots=True)
class PlainNodes:
    """References of nodes of a plain shape: lists, `SINGLES` of cursors and schemas, and each read cursor (`CURSORS`).

    Attributes:
        misplaced: positions of lists that may be elsewhere than in a managed ledger's node.
        left: positions of the nodes that were not read here, ascending.
    """

    lists: LedgerLists
    misplaced: Numbers
    singles: pa.RecordBatch
    cursors: pa.RecordBatch
    left: Numbers


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Reader of whole columns; with ``exact``, it reads every value separately."""

    exact: bool = False

    def read_nodes(self, paths: pa.Array, values: pa.Array, *, with_entries: bool) -> PlainNodes:
        """Read every node of a plain shape; an empty value is a list without ledgers."""
        if self.exact:
            singles, cursors = (pa.RecordBatch.from_pylist([], schema=schema) for schema in (SINGLES, CURSORS))
            none = np.zeros(0, np.int64)
            lists = LedgerLists(none, none, none, none, np.zeros(0, np.bool_))
            return PlainNodes(lists, none, singles, cursors, np.arange(len(values)))
        lists, left = read_ledger_lists(values, with_entries=with_entries)
        listing = np.flatnonzero(np.bincount(lists.node))
        is_plain = np.asarray(are_plain_managed_ledgers(paths.take(pa.array(listing))))
        of_cursors, cursors, left = _read_cursors(paths, values, left)
        of_schemas, left = _read_schemas(paths, values, left)
        return PlainNodes(lists, listing[~is_plain], pa.concat_batches([of_cursors, of_schemas]), cursors, left)

    def may_name(self, values: pa.Array, wanted: Numbers) -> Mask:
        """Return True for nodes that may hold a managed ledger's list that names one of these ledgers."""
        if self.exact:
            return np.ones(len(values), np.bool_)
        found, left = find_ledgers(values, wanted)
        # Cursors begin with this byte, and lists do not.
        is_cursor = np.asarray(pc.fill_null(pc.starts_with(values, _CURSORS_FIRST_BYTE), False))
        some: Mask = found | (left & ~is_cursor)
        return some

    def ledger_ids(self, paths: pa.Array, ledgers_root: str) -> pa.Array:
        """Return the id whose metadata node is at each path, null for every other node."""
        if self.exact:
            return pa.array([ledger_id_of_path(path, ledgers_root) for path in paths.to_pylist()], pa.int64())
        found, valid, unread = ledger_ids(paths, ledgers_root)
        left = pa.array(unread)
        rest = [ledger_id_of_path(path, ledgers_root) for path in paths.filter(left).to_pylist()]
        return _completed(pa.array(found, mask=~valid), left, rest)

    def ledger_lengths(self, metadata: pa.Array) -> pa.Array:
        """Return the bytes in each ledger by its node, null while they are unknown."""
        if self.exact:
            return pa.array([ledger_length(value) for value in metadata.to_pylist()], pa.int64())
        lengths, unread = ledger_lengths(metadata)
        left = pa.array(unread)
        rest = [ledger_length(value) for value in metadata.filter(left).to_pylist()]
        return _completed(pa.array(lengths, mask=lengths == UNKNOWN), left, rest)

    def owners_at(self, paths: pa.Array) -> Owners:
        """Return `ownership.places.owner_at` of each path."""
        return self._owners(plain_owners_at, owner_at, paths)

    def owners_of(self, managed_ledgers: pa.Array) -> Owners:
        """Return `ownership.places.owner_of_managed_ledger` of each name."""
        return self._owners(plain_owners_of, owner_of_managed_ledger, managed_ledgers)

    def _owners(
        self, plainly: Callable[[pa.Array], Owners], exactly: Callable[[str], Owner], values: pa.Array
    ) -> Owners:
        columns = (pa.nulls(len(values), pa.string()),) * 3 if self.exact else plainly(values)
        left = pc.is_null(columns[0])
        if not left.true_count:
            return columns
        owners = [exactly(value) for value in values.filter(left).to_pylist()]
        tenants, namespaces, topics = columns
        return (
            _completed(tenants, left, [owner.tenant for owner in owners]),
            _completed(namespaces, left, [owner.namespace for owner in owners]),
            _completed(topics, left, [owner.topic for owner in owners]),
        )


def _completed(column: pa.Array, left: pa.Array, rest: Sequence[Any]) -> pa.Array:
    return pc.replace_with_mask(column, left, pa.array(rest, column.type))


def _read_cursors(paths: pa.Array, values: pa.Array, left: Numbers) -> tuple[pa.RecordBatch, pa.RecordBatch, Numbers]:
    """Return `SINGLES` and `CURSORS` of cursors of the plain shape, and the positions of all other nodes."""
    positions = pa.array(left)
    there = paths.take(positions)
    owners = owners_of_plain_cursors(there)
    cursors = read_plain_cursors(values.take(positions))
    read = cursors.read & np.asarray(owners.is_valid())
    in_ledger = cursors.ledger_id != NO_LEDGER
    named = read & in_ledger
    kinds = pa.repeat(LedgerKind.CURSOR.value, int(named.sum()))
    singles = [pa.array(cursors.ledger_id[named]), kinds, there.filter(pa.array(named))]
    states = [owners.filter(pa.array(read)), pa.array(in_ledger[read])]
    return (
        pa.RecordBatch.from_arrays(singles, schema=SINGLES),
        pa.RecordBatch.from_arrays(states, schema=CURSORS),
        left[~read],
    )


def _read_schemas(paths: pa.Array, values: pa.Array, left: Numbers) -> tuple[pa.RecordBatch, Numbers]:
    """Return `SINGLES` of schemas of the plain shape, and the positions of all other nodes."""
    is_schema = np.asarray(are_schemas(paths.take(pa.array(left))))
    there = left[is_schema]
    schemas = read_plain_schemas(values.take(pa.array(there)))
    kinds = pa.repeat(LedgerKind.SCHEMA.value, len(schemas.node))
    singles = [pa.array(schemas.ledger_id), kinds, paths.take(pa.array(there[schemas.node]))]
    rest = np.sort(np.concatenate([left[~is_schema], there[~schemas.read]]))
    return pa.RecordBatch.from_arrays(singles, schema=SINGLES), rest
