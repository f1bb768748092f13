"""What the listing has, what the dump has and what is referenced, held against each other; for both engines."""

import numpy as np

from service.audit.id_tables import IdSpan
from service.audit.varints import Mask, Numbers


class LedgerSets:
    """Ledgers that are listed, dumped (in the order of the dump's rows, -1 for a row that is none) and referenced."""

    def __init__(self, listed: Numbers, dumped: Numbers, referenced: Numbers) -> None:
        self.listed = listed
        self.dumped = dumped
        self.referenced = referenced
        self._span = IdSpan(listed, dumped, referenced)
        self._listed, self._dumped, self._referenced = map(self._span.table, (listed, dumped, referenced))

    def candidates(self) -> Mask:
        """Which of the dump's rows exist for certain and are not referenced."""
        return self._span.among(self.dumped, self._listed & ~self._referenced)

    def gone(self) -> Numbers:
        """Referenced and nowhere, ascending."""
        return self._span.ids(self._referenced & ~(self._listed | self._dumped))

    def newest(self) -> int:
        """The highest id of a ledger that exists, -1 when there is none."""
        return int(max(self.listed.max(initial=-1), self.dumped.max(initial=-1)))

    def in_dump(self) -> int:
        """How many listed ledgers the dump has."""
        return int(np.count_nonzero(self._listed & self._dumped))

    def referenced_and_listed(self) -> int:
        """How many listed ledgers are referenced."""
        return int(np.count_nonzero(self._listed & self._referenced))
