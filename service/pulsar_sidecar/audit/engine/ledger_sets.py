"""What the listing has, what the dump has and what is referenced, held against each other; for both engines."""

from collections.abc import Sequence

import numpy as np

from pulsar_sidecar.audit.columnar.id_tables import IdSpan
from pulsar_sidecar.audit.columnar.varints import Ids, Mask, Numbers


class LedgerSets:
    """Ledgers that are listed, dumped (in the order of the dump's rows, -1 for a row that is none) and referenced.

    What is listed comes in any number of pieces, what is referenced as it is found.

    Attributes:
        listed: how many ids were listed, repetitions included.
        references: the same for those that were referenced.
    """

    def __init__(self, listed: Sequence[Ids], dumped: Ids) -> None:
        self.dumped = dumped
        self.listed = sum(map(len, listed))
        self.references = 0
        self._span = IdSpan(*listed, dumped)
        self._listed, self._dumped, self._referenced = map(self._span.table, (listed, [dumped], []))
        self._nowhere = [np.zeros(0, np.int64)]

    def refer(self, ids: Ids) -> None:
        """Add references."""
        self.references += len(ids)
        self._nowhere.append(self._span.add(ids, self._referenced))

    def candidates(self) -> Numbers:
        """The ledgers that exist for certain and are not referenced, ascending."""
        return self._span.ids(_without(self._listed, self._referenced) & self._dumped)

    def rows_of(self, ids: Numbers) -> Numbers:
        """The places of the dump's rows of some ledgers."""
        return np.flatnonzero(self._span.among(self.dumped, self._span.table([ids])))

    def gone(self) -> Numbers:
        """Referenced and nowhere, ascending."""
        gone = self._span.ids(_without(_without(self._referenced, self._listed), self._dumped))
        nowhere = np.unique(np.concatenate(self._nowhere))
        return np.sort(np.concatenate([gone, nowhere[nowhere >= 0]]))

    def newest(self) -> int:
        """The highest id of a ledger that exists, -1 when there is none."""
        return max(map(self._span.highest, (self._listed, self._dumped)))

    def in_dump(self) -> int:
        """How many listed ledgers the dump has."""
        return int(np.count_nonzero(self._listed & self._dumped))

    def referenced_and_listed(self) -> int:
        """How many listed ledgers are referenced."""
        return int(np.count_nonzero(self._listed & self._referenced))


def _without(some: Mask, others: Mask) -> Mask:
    """In one, and not in the other."""
    answer: Mask = some > others
    return answer
