"""Every key below some path as of one revision of etcd, like a walk of ZooKeeper.

Invariant: all pages are of the revision of the first one, and together they have as many keys as etcd counted in it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, Key, encoded, keys_of
from pulsar_sidecar.adapters.metadata_access import UNLIMITED, SessionOptions, WalkOptions
from pulsar_sidecar.features.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.model.clocks import Clock, Pace, StopSignal
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import (
    MANAGED_LEDGERS,
    PARTITIONED_TOPICS,
    REFERRING,
    SCHEMAS,
    ledger_id_of_path,
)
from pulsar_sidecar.ownership.shadows import may_be_shadow

_CALL_TIMEOUT_SECONDS: Final = 30.0
_FIRST_PAGE_KEYS: Final = 100
_MOST_KEYS: Final = 5_000
_MUCH_BYTES: Final = 2 * 1024 * 1024

Range = tuple[str, str]
"""First key, and the end, which is not part of it."""

EVERYTHING: Final[Range] = ("/", "0")


def ledgers_below(root: str) -> Range:
    """Return the range of ledgers: their directories have numbers for names; other keys there are BookKeeper's own."""
    return f"{root}/0", f"{root}/:"


def below_root(root: str) -> Range:
    """Return the range of a key and of all below it."""
    return root, f"{root}0"


def everything_but_ledgers(root: str) -> tuple[Range, Range]:
    first, end = ledgers_below(root)
    return (EVERYTHING[0], first), (end, EVERYTHING[1])


class EtcdWalk:
    """Reader of ranges of keys, all as of one revision.

    Attributes:
        gateway: the connection; `pages` closes it.
        revision: the revision, once the first page is read.
        keys: number of keys read.
        keys_only: True if the values are left out.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        ranges: Sequence[Range] = (EVERYTHING,),
        options: WalkOptions = UNLIMITED,
        *,
        keys_only: bool = False,
    ) -> None:
        """Prepare a walk of the metadata store at Pulsar's ``metadataStoreUrl``."""
        session = SessionOptions(
            call_timeout_seconds=_CALL_TIMEOUT_SECONDS, credential=options.credential, tls=options.tls
        )
        self.gateway = EtcdGateway(url, clock, session)
        self.revision: int | None = None
        self.keys = 0
        self._ranges = ranges
        self.keys_only = keys_only
        self._pace = Pace(clock, options.nodes_per_second, options.hurry)
        self._page_keys = _MOST_KEYS if keys_only else _FIRST_PAGE_KEYS

    def pages(self) -> Iterator[Sequence[Key]]:
        """Yield every key once, in order; call this once.

        Raises:
            TemporaryError: not all could be read; discard the yielded rows.
        """
        try:
            self.gateway.learn_times()
            for first, end in self._ranges:
                yield from self._pages_of(first, end)
        finally:
            self.gateway.close()

    def _pages_of(self, first: str, end: str) -> Iterator[Sequence[Key]]:
        expected, found, start = None, 0, first
        while True:
            request = {
                "key": encoded(start),
                "range_end": encoded(end),
                "limit": str(self._pace.batch_size(self._page_keys)),
                "keys_only": self.keys_only,
                "revision": str(self.revision or 0),
            }
            answer = self.gateway.reading(f"read the keys from {start} on", "kv/range", request)
            if self.revision is None:
                self.revision = int(answer["header"]["revision"])
            if expected is None:
                expected = int(answer.get("count", 0))
            keys = keys_of(answer)
            found += len(keys)
            self._learn(keys)
            yield keys
            if not answer.get("more"):
                break
            start = f"{keys[-1].path}\0"
            self._pace.wait_after(len(keys))
        self.keys += found
        if found != expected:
            raise TemporaryError(f"etcd counted {expected} keys from {first} on and returned {found}; begin again")

    def _learn(self, keys: Sequence[Key]) -> None:
        if self.keys_only:
            return
        size_bytes = sum(len(key.data) for key in keys)
        if size_bytes > _MUCH_BYTES:
            self._page_keys = max(1, self._page_keys // 4)
        elif len(keys) == self._page_keys:
            self._page_keys = min(_MOST_KEYS, self._page_keys * 2)


class EtcdWholeStore:
    """`ledger_deletion.watch.ports.WholeStore` by walking; each call is a walk of its own."""

    def __init__(self, url: str, clock: Clock, ledgers_root: str, options: WalkOptions = UNLIMITED) -> None:
        self._url, self._clock, self._ledgers_root, self._options = url, clock, ledgers_root, options

    def ledger_ids(self) -> Iterator[LedgerIds]:
        for keys in self._ledgers(keys_only=True):
            ids = (ledger_id_of_path(key.path, self._ledgers_root) for key in keys)
            yield np.array([ledger_id for ledger_id in ids if ledger_id is not None], np.int64)

    def ledgers(self) -> Iterator[tuple[LedgerId, bytes]]:
        """Yield each ledger with its own metadata: `ownership.ports.EveryLedger`."""
        for keys in self._ledgers(keys_only=False):
            for key in keys:
                ledger_id = ledger_id_of_path(key.path, self._ledgers_root)
                if ledger_id is not None:
                    yield ledger_id, key.data

    def nodes(self) -> Iterator[Sequence[WalkedNode]]:
        ranges = (below_root(MANAGED_LEDGERS), below_root(SCHEMAS))
        for keys in EtcdWalk(self._url, self._clock, ranges, self._options).pages():
            yield [WalkedNode(key.path, key.data) for key in keys if key.path.startswith(REFERRING)]

    def possible_shadows(self, hurry: StopSignal) -> Iterator[tuple[int, Sequence[tuple[str, bytes]]]]:
        ranges = (below_root(PARTITIONED_TOPICS), below_root(MANAGED_LEDGERS))
        for keys in EtcdWalk(self._url, self._clock, ranges, replace(self._options, hurry=hurry)).pages():
            yield len(keys), [(key.path, key.data) for key in keys if may_be_shadow(key.data)]

    def _ledgers(self, *, keys_only: bool) -> Iterator[Sequence[Key]]:
        root = self._ledgers_root
        walk = EtcdWalk(self._url, self._clock, [below_root(root)], self._options, keys_only=keys_only)
        yield from walk.pages()
        demand_root(walk, root)


def demand_root(walk: EtcdWalk, root: str) -> None:
    """Refuse a walk that found nothing: below a wrong root no ledger would exist."""
    if not walk.keys:
        raise TemporaryError(f"there is no {root} in the metadata store; check the address and the path")
