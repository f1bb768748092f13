"""The metadata store's own clock, by which the ages of nodes are told.

Invariant: this machine's wall clock is never used. A node of ours is written, the store stamps it with its time, and
only the time since then is measured here, on a clock that cannot be set.
"""

import threading

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from pulsar_sidecar.adapters.metadata.session import KazooSession, Patience
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore

CLOCK_PATH = "/pulsar-sidecar/clock"
_REFRESH_SECONDS = 30.0
_MAX_ROUND_TRIP_SECONDS = 2.0
_GOOD_ROUND_TRIP_SECONDS = 0.1
"""The time told is off by half a round trip at most; after a slower one it is worth asking again."""
_TRIES = 3


class StoreClock:
    """Measures the difference to the store's clock every 30 seconds; several sidecars may share the node."""

    def __init__(self, session: KazooSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._lock = threading.Lock()
        self._offset_ms = 0.0
        self._measured: tuple[float, int] | None = None

    def now_ms(self) -> int:
        """The store's time, at most a second off.

        Raises:
            TemporaryError: it could not be measured.
        """
        with self._lock:
            if self._is_stale():
                self._measure()
            return int(self._offset_ms + self._clock.monotonic_seconds() * 1000)

    def _is_stale(self) -> bool:
        if self._measured is None:
            return True
        at, epoch = self._measured
        # Another session may be with another server, after another leader's election.
        return self._clock.monotonic_seconds() - at >= _REFRESH_SECONDS or epoch != self._session.epoch

    def _measure(self) -> None:
        best: tuple[float, float, tuple[float, int]] | None = None
        for _ in range(_TRIES):
            epoch = self._session.epoch
            started, stamped_ms, ended = self._session.reading("measure the store's clock", self._stamp)
            found = (ended - started, stamped_ms - (started + ended) / 2 * 1000, (ended, epoch))
            best = found if best is None else min(best, found)
            if best[0] <= _GOOD_ROUND_TRIP_SECONDS:
                break
        if best is None or best[0] > _MAX_ROUND_TRIP_SECONDS:
            raise TemporaryError(
                f"ZooKeeper took longer than {_MAX_ROUND_TRIP_SECONDS:.0f} s for a write, too long to tell its time; "
                "try again when it is less busy"
            )
        _, self._offset_ms, self._measured = best

    def _stamp(self, client: KazooClient, patience: Patience) -> tuple[float, int, float]:
        # Writing it twice does no harm, so this may be repeated like a read.
        started = self._clock.monotonic_seconds()
        try:
            stat = patience.answer(client.set_async(CLOCK_PATH, b""))
        except NoNodeError:
            _create_clock(client, patience)
            started = self._clock.monotonic_seconds()
            stat = patience.answer(client.set_async(CLOCK_PATH, b""))
        return started, stat.mtime, self._clock.monotonic_seconds()


def _create_clock(client: KazooClient, patience: Patience) -> None:
    for path in (CLOCK_PATH.rpartition("/")[0], CLOCK_PATH):
        try:
            patience.answer(client.create_async(path))
        except NodeExistsError:
            continue


class StoreTime:
    """`model.clocks.Clock` by the metadata store's time, which all machines of a cluster share.

    While the store does not answer, the time is told from when it last did; before it ever did, by the machine's clock.
    """

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._offset_ms: float | None = None

    def now_ms(self) -> int:
        try:
            now_ms = self._store.now_ms()
        except SidecarError:
            offset_ms = self._offset_ms
            return self._clock.now_ms() if offset_ms is None else round(offset_ms + self._monotonic_ms())
        self._offset_ms = now_ms - self._monotonic_ms()
        return now_ms

    def monotonic_seconds(self) -> float:
        return self._clock.monotonic_seconds()

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        return self._clock.wait_seconds(seconds, stop)

    def _monotonic_ms(self) -> float:
        return self._clock.monotonic_seconds() * 1000
