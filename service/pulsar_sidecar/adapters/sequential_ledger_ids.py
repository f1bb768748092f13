"""New ledger ids, allocated as by every BookKeeper client of the cluster (``PulsarLedgerIdGenerator``).

An id is the number of a sequential node. Ids have 31 bits until these are used up; then a client makes ``idgen-long``,
and all of them continue with 63 bits.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from pulsar_sidecar.model.errors import AlreadyExistsError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, LAST_SHORT_LEDGER_ID

_HIGH_BITS_PREFIX: Final = "HOB-"
_TRIES = 4


class SequentialLedgerIds(ABC):
    """Generator of ids that no ledger has had; safe for use by several threads."""

    def __init__(self, store: MetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self._store = store
        self._short = f"{ledgers_root}/idgen"
        self._long = f"{ledgers_root}/idgen-long"

    def next(self) -> LedgerId:
        """Return a new id.

        Raises:
            TemporaryError: the store gave none; at most an unused number is lost.
        """
        try:
            for _ in range(_TRIES):
                folders = self._store.children(self._long)
                if folders is None:
                    number = self._number_below(self._short)
                    if 0 <= number <= LAST_SHORT_LEDGER_ID:
                        return LedgerId(number)
                    self.make(self._long)
                elif (high_bits := _largest(folders)) is None:
                    self.make(self._high_bits_folder(1))
                else:
                    number = self._number_below(self._high_bits_folder(high_bits))
                    if 0 <= number <= LAST_SHORT_LEDGER_ID:
                        return LedgerId(high_bits << 32 | number)
                    self.make(self._high_bits_folder(high_bits + 1))
        except OutcomeUnknownError as error:
            raise TemporaryError(f"no new ledger id was assigned: {error}") from error
        raise TemporaryError(
            f"the counters below {self._long} are used up repeatedly; check what creates nodes there, and try again"
        )

    def _high_bits_folder(self, high_bits: int) -> str:
        return f"{self._long}/{_HIGH_BITS_PREFIX}{high_bits:010d}"

    @abstractmethod
    def _number_below(self, folder: str) -> int:
        """Return a number that no other sequential node of the folder has had."""

    def make(self, folder: str) -> None:
        # Another client may be faster.
        with suppress(AlreadyExistsError):
            self._store.create(folder, b"")


def _largest(folders: Iterable[str]) -> int | None:
    numbers = [name.removeprefix(_HIGH_BITS_PREFIX) for name in folders]
    return max((int(number) for number in numbers if number.isascii() and number.isdecimal()), default=None)
