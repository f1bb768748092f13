"""Arrays of ledger ids and other numbers, as both engines pass them on."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Ids = npt.NDArray[np.int64] | npt.NDArray[np.int32]
"""Many ledger ids, in the narrower numbers wherever all of them fit."""

Mask = npt.NDArray[np.bool_]

_WIDEST_NARROW = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LedgerLists:
    """The lists of some nodes, one element for each ledger, grouped by node and in the order of the node's list.

    Attributes:
        node: the node's position in the column, ascending.
        entries: 0 everywhere if they were not asked for.
        closed: whether the node tells the ledger's size.
    """

    node: Numbers
    ledger_id: Numbers
    entries: Numbers
    size_bytes: Numbers
    closed: Mask


def no_lists() -> LedgerLists:
    """Of no node."""
    none = np.zeros(0, np.int64)
    return LedgerLists(none, none, none, none, np.zeros(0, np.bool_))


def narrowed(ids: Numbers) -> Ids:
    """The same ids in half the memory, which is what comparing millions of them takes time for, if they fit."""
    return ids.astype(np.int32) if not len(ids) or int(ids.max()) <= _WIDEST_NARROW else ids


def sums_between(values: Numbers | Mask, starts: Numbers) -> Numbers:
    """Exact sums of what lies between some places and the next of them."""
    if not len(starts):
        return np.zeros(0, np.int64)
    totals: Numbers = np.add.reduceat(values.astype(np.int64), starts)
    return totals
