"""Which of millions of ledger ids are in a set of others: a table over the set's whole span where that fits memory."""

import numpy as np

from service.audit.varints import Mask, Numbers

_WIDEST_SPAN = 1 << 28
"""A byte for each id in it."""


class IdTable:
    """A set of ledger ids; -1 is never in it."""

    def __init__(self, ids: Numbers) -> None:
        self._first = max(0, int(ids.min())) if len(ids) else 0
        span = int(ids.max()) - self._first + 1 if len(ids) else 0
        self._table: Mask | None = None
        self._ordered: Numbers | None = None
        if span <= _WIDEST_SPAN:
            # The place behind the last id is for every id outside.
            self._table = np.zeros(max(span, 0) + 1, np.bool_)
            self._table[ids[ids >= 0] - self._first] = True
        else:
            self._ordered = np.unique(ids[ids >= 0])

    def holds(self, ids: Numbers) -> Mask:
        """Which of these are in the set."""
        if self._table is not None:
            places = (ids - self._first).view(np.uint64)
            return self._table[np.minimum(places, np.uint64(len(self._table) - 1)).view(np.int64)]
        assert self._ordered is not None
        at = np.minimum(np.searchsorted(self._ordered, ids), len(self._ordered) - 1)
        found: Mask = self._ordered[at] == ids
        return found
