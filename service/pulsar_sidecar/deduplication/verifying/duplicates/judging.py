"""What is wrong with each suspect, once the earlier rows with its id are known: the rules of `findings`, by column."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pulsar_sidecar.deduplication.verifying.duplicates.row_groups import Mask, Numbers, starts_of
from pulsar_sidecar.deduplication.verifying.rows import FindingKind

NOWHERE: Final = np.iinfo(np.int64).max
KINDS: Final = tuple(FindingKind)
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


def kind_names(kind: npt.NDArray[np.generic]) -> pa.Array:
    """The kinds as tables name them."""
    return pa.array([each.value for each in KINDS]).take(pa.array(kind))
