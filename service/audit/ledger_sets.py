"""What the listing has, what the dump has and what is referenced, held against each other; for both engines."""

from collections.abc import Sequence

import numpy as np

from service.audit.id_tables import IdSpan
from service.audit.varints import Ids, Mask, Numbers


class LedgerSets:
    """Ledgers that are listed, dumped (in the order of the dump's rows, -1 for a row that is none) and referenced.

    What is listed and what is referenced comes in any number of pieces.

    Attributes:
        listed: how many ids were listed, repetitions included.
        references: the same for those that were referenced.
    """

    def __init__(self, listed: Sequence[Ids], dumped: Ids, referenced: Sequence[Ids]) -> None:
        self.dumped = dumped
        self.listed, self.references = (sum(map(len, pieces)) for pieces in (listed, referenced))
        self._span = IdSpan(*listed, dumped, *referenced)
        self._listed, self._dumped, self._referenced = map(self._span.table, (listed, [dumped], referenced))

    def candidates(self) -> Mask:
        """Which of the dump's rows exist for certain and are not referenced."""
        return self._span.among(self.dumped, self._listed & ~self._referenced)

    def gone(self) -> Numbers:
        """Referenced and nowhere, ascending."""
        return self._span.ids(self._referenced & ~(self._listed | self._dumped))

    def newest(self) -> int:
        """The highest id of a ledger that exists, -1 when there is none."""
        return self._span.highest(self._listed | self._dumped)

    def in_dump(self) -> int:
        """How many listed ledgers the dump has."""
        return int(np.count_nonzero(self._listed & self._dumped))

    def referenced_and_listed(self) -> int:
        """How many listed ledgers are referenced."""
        return int(np.count_nonzero(self._listed & self._referenced))
