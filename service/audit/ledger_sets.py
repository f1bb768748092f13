"""What the listing has, what the dump has and what is referenced, held against each other; for both engines."""

import numpy as np

from service.audit.id_tables import IdTable
from service.audit.varints import Mask, Numbers


class LedgerSets:
    """Ledgers that are listed, dumped (in the order of the dump's rows, -1 for a row that is none) and referenced."""

    def __init__(self, listed: Numbers, dumped: Numbers, referenced: Numbers) -> None:
        self.listed = listed
        self.dumped = dumped
        self.referenced = referenced
        self._listed, self._dumped, self._referenced = map(IdTable, (listed, dumped, referenced))

    def candidates(self) -> Mask:
        """Which of the dump's rows exist for certain and are not referenced."""
        return self._listed.holds(self.dumped) & ~self._referenced.holds(self.dumped)

    def gone(self) -> Numbers:
        """Referenced and nowhere, ascending."""
        there = self._listed.holds(self.referenced)
        rest = self.referenced[~there]
        return np.unique(rest[~self._dumped.holds(rest)])

    def newest(self) -> int:
        """The highest id of a ledger that exists, -1 when there is none."""
        return int(max(self.listed.max(initial=-1), self.dumped.max(initial=-1)))

    def in_dump(self) -> int:
        """How many listed ledgers the dump has."""
        return int(self._dumped.holds(self.listed).sum())

    def referenced_and_listed(self) -> int:
        """How many listed ledgers are referenced."""
        return int(self._referenced.holds(self.listed).sum())
