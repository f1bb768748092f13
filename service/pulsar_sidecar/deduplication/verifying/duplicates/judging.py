"""What is wrong with each suspect, once the earlier rows with its id are known: the rules of `findings`, by column."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pulsar_sidecar.deduplication.verifying.duplicates.row_groups import PLACE, Mask, Numbers, starts_of
from pulsar_sidecar.deduplication.verifying.rows import FindingKind, MessageKind

NOWHERE: Final = np.iinfo(np.int64).max
KINDS: Final = tuple(FindingKind)
COUNTED_AS: Final = ("duplicates", "reused", "repeated", "going_back", "epochs")
"""The columns of `tables.PRODUCERS` that count `KINDS`."""
_MESSAGE_KINDS: Final = [kind.name.lower() for kind in MessageKind]
_AS_THEY_ARE: Final = ("sequence_id", *PLACE, "publish_time_ms", "highest")
_DUPLICATE, _REUSED, _REPEATED, _GOING_BACK, _EPOCH = range(len(KINDS))


@dataclass(frozen=True, slots=True)
class Earlier:
    """For each suspect the first rows, of all rows, that have its id; `NOWHERE` where there is none.

    Attributes:
        any_payload: whatever its payload.
        unread: whose payload was not read.
        same_payload: whose payload was read and has the same hash.
    """

    any_payload: Numbers
    unread: Numbers
    same_payload: Numbers

    def of(self, places: Numbers) -> "Earlier":
        """Some of them."""
        return Earlier(self.any_payload[places], self.unread[places], self.same_payload[places])


def judged(row: Numbers, is_read: Mask, earlier: Earlier) -> tuple[Numbers, Numbers]:
    """The place of each suspect's kind among `KINDS`, and the row that it is compared with, `NOWHERE` for none."""
    kind = np.where(earlier.unread < row, _REPEATED, _REUSED)
    kind = np.where(earlier.same_payload < row, _DUPLICATE, kind)
    kind = np.where(is_read, kind, _REPEATED)
    kind = np.where(earlier.any_payload < row, kind, _GOING_BACK)
    compared = np.where(kind == _DUPLICATE, earlier.same_payload, earlier.any_payload)
    return kind, np.where(kind == _GOING_BACK, NOWHERE, compared)


def begins_epoch(kind: Numbers, may_begin: Mask) -> Mask:
    """Which suspects begin an epoch besides."""
    begins: Mask = may_begin & (kind != _DUPLICATE)
    return begins


def earlier_rows(
    producer: Numbers, sequence_id: Numbers, row: Numbers, payload_hash: Numbers, is_read: Mask
) -> Earlier:
    """Of stored rows, in any order and with those that are suspects, what each is to be compared with."""
    order = np.lexsort((row, payload_hash, ~is_read, sequence_id, producer))
    row, is_read = row[order], is_read[order]
    new_id = starts_of(producer[order]) | starts_of(sequence_id[order])
    new_payload = new_id | starts_of(payload_hash[order]) | starts_of(is_read)
    unread = np.where(is_read, NOWHERE, row)
    found = (
        _least(row, new_id),
        _least(unread, new_id),
        np.where(is_read, _least(row, new_payload), NOWHERE),
    )
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return Earlier(*(each[back] for each in found))


def _least(numbers: Numbers, is_start: Mask) -> Numbers:
    """For each the least since the last start and until the next."""
    starts = np.flatnonzero(is_start)
    if not len(starts):
        return numbers
    least: Numbers = np.minimum.reduceat(numbers, starts)[np.cumsum(is_start) - 1]
    return least


def findings_of(
    suspects: Mapping[str, Any], earlier: Earlier, places: Mapping[str, tuple[Numbers, Numbers]]
) -> tuple[Numbers, Numbers, dict[str, pa.Array]]:
    """Which suspects are findings of which of `KINDS`, and the columns of `tables.FINDINGS` but for their producers.

    Each suspect is one, and another where it begins an epoch. ``suspects`` has columns of `tables.SUSPECTS`, and
    ``places`` has those of the places of ``earlier.any_payload`` and ``earlier.same_payload``.
    """
    kind, compared = judged(suspects["row"], suspects["is_read"], earlier)
    epochs = np.flatnonzero(begins_epoch(kind, suspects["may_begin_epoch"]))
    every = np.append(np.arange(len(kind)), epochs)
    is_same, is_alone = (kind == _DUPLICATE)[every], (compared == NOWHERE)[every]
    is_alone[len(kind) :] = True
    kinds = np.append(kind, np.full(len(epochs), _EPOCH))
    columns = {
        "finding": pa.array([each.value for each in KINDS]).take(pa.array(kinds)),
        "message_kind": pa.array(_MESSAGE_KINDS).take(pa.array(suspects["message_kind"][every])),
        **{name: pa.array(suspects[name][every]) for name in _AS_THEY_ARE},
        **{
            f"earlier_{name}": pa.array(np.where(is_same, same[every], any_payload[every]), mask=is_alone)
            for name, (any_payload, same) in places.items()
        },
    }
    return every, kinds, columns
