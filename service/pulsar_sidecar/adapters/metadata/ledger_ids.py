"""New ledger ids, as every BookKeeper client of the cluster takes them (``PulsarLedgerIdGenerator``).

An id is the number that ZooKeeper gives to an ephemeral sequential node, which is deleted at once. Ids have 31 bits
until these are used up; then one of the clients makes ``idgen-long``, and all of them go on with 63 bits.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pulsar_sidecar.adapters.metadata.session import Patience
from pulsar_sidecar.adapters.metadata.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, LAST_SHORT_LEDGER_ID
from pulsar_sidecar.model.errors import AlreadyExistsError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

_NUMBER_PREFIX: Final = "ID-"
_HIGH_BITS_PREFIX: Final = "HOB-"
_TRIES = 4


class ZooKeeperLedgerIds:
    """Ids that no ledger has had; safe for use by several threads."""

    def __init__(self, store: ZooKeeperMetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self._store = store
        self._short = f"{ledgers_root}/idgen"
        self._long = f"{ledgers_root}/idgen-long"

    def next(self) -> LedgerId:
        """A new id.

        Raises:
            TemporaryError: the store gave none; an unused number at most is lost.
        """
        try:
            for _ in range(_TRIES):
                folders = self._store.children(self._long)
                if folders is None:
                    number = self._number_below(self._short)
                    if 0 <= number <= LAST_SHORT_LEDGER_ID:
                        return LedgerId(number)
                    self._make(self._long)
                elif (high_bits := _largest(folders)) is None:
                    self._make(self._high_bits_folder(1))
                else:
                    number = self._number_below(self._high_bits_folder(high_bits))
                    if 0 <= number <= LAST_SHORT_LEDGER_ID:
                        return LedgerId(high_bits << 32 | number)
                    self._make(self._high_bits_folder(high_bits + 1))
        except OutcomeUnknownError as error:
            raise TemporaryError(f"no new ledger id was assigned: {error}") from error
        raise TemporaryError(
            f"the counters below {self._long} are used up repeatedly; check what creates nodes there, and try again"
        )

    def _high_bits_folder(self, high_bits: int) -> str:
        return f"{self._long}/{_HIGH_BITS_PREFIX}{high_bits:010d}"

    def _number_below(self, folder: str) -> int:
        def create(client: KazooClient, patience: Patience) -> str:
            made = client.create_async(f"{folder}/{_NUMBER_PREFIX}", b"", ephemeral=True, sequence=True)
            return patience.answer(made)

        try:
            path = self._store.writing(f"take a ledger id below {folder}", create)
        except NoNodeError:
            self._make(folder)
            return self._number_below(folder)
        # What cannot be deleted now is gone at the end of the session.
        self._store.delete(path)
        return int(path.rpartition(_NUMBER_PREFIX)[2])

    def _make(self, folder: str) -> None:
        # Another client may be quicker.
        with suppress(AlreadyExistsError):
            self._store.create(folder, b"")


def _largest(folders: Iterable[str]) -> int | None:
    numbers = [name.removeprefix(_HIGH_BITS_PREFIX) for name in folders]
    return max((int(number) for number in numbers if number.isascii() and number.isdecimal()), default=None)
