"""New ledger ids while they are short, when these are used up, and ever after (``PulsarLedgerIdGenerator``)."""

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest
from kazoo.exceptions import NoNodeError
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperLedgerIds, ZooKeeperMetadataStore
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError

from tests.fakes.metadata import FakeMetadataStore

SHORT, LONG = "/ledgers/idgen", "/ledgers/idgen-long"
LAST = 2**31 - 2


class NumberingStore(FakeMetadataStore):
    """Sequential nodes too: as many as are asked for, from numbers that a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.next_number: Counter[str] = Counter()
        self.error: Exception | None = None

    def writing(self, what: str, attempt: Callable[[Any, Any], str]) -> str:
        return attempt(self, self)

    def create_async(self, prefix: str, data: bytes, *, ephemeral: bool, sequence: bool) -> str:
        assert (ephemeral, sequence, data) == (True, True, b"")
        return prefix

    def answer(self, prefix: str) -> str:
        folder = prefix.rpartition("/")[0]
        if self.error is not None:
            raise self.error
        if self.peek(folder) is None:
            raise NoNodeError
        number = self.next_number[folder]
        self.next_number[folder] += 1
        # ZooKeeper counts with 32 bits and a sign.
        path = f"{prefix}{number if number < 2**31 else number - 2**32:010d}"
        self.put(path)
        return path


@pytest.fixture
def store() -> NumberingStore:
    return NumberingStore()


@pytest.fixture
def ids(store: NumberingStore) -> ZooKeeperLedgerIds:
    return ZooKeeperLedgerIds(cast("ZooKeeperMetadataStore", store))


@pytest.mark.parametrize("number", [LAST + 1, 2**31])
def test_long_ids_follow_the_last_short_one(store: NumberingStore, ids: ZooKeeperLedgerIds, number: int) -> None:
    store.put(SHORT)
    store.next_number[SHORT] = LAST
    assert ids.next() == LAST
    store.next_number[SHORT] = number
    assert [ids.next() for _ in range(2)] == [1 << 32, 1 << 32 | 1]
    store.next_number[SHORT] = 5
    assert ids.next() == 1 << 32 | 2, "nobody goes back to short ids"


def test_the_largest_folder_counts(store: NumberingStore, ids: ZooKeeperLedgerIds) -> None:
    for name in ("HOB-0000000002", "HOB-0000000010", "something"):
        store.put(f"{LONG}/{name}")
    assert ids.next() == 10 << 32


def test_a_folder_that_is_used_up(store: NumberingStore, ids: ZooKeeperLedgerIds) -> None:
    store.put(f"{LONG}/HOB-0000000003")
    store.next_number[f"{LONG}/HOB-0000000003"] = LAST + 1
    assert ids.next() == 4 << 32


def test_lost_response_yields_no_ledger_id(store: NumberingStore, ids: ZooKeeperLedgerIds) -> None:
    store.put(SHORT)
    store.error = OutcomeUnknownError("the answer was lost")
    with pytest.raises(TemporaryError, match="no new ledger id"):
        ids.next()
