"""Contents of bookies' disks: their ledgers, the owners of these, and the bytes not collected yet.

A bookie collects in two steps. Every ``gcWaitTime`` it removes the ledgers whose metadata is gone from its index, and
the entry logs without any ledger. Compaction rewrites the other entry logs once they are empty enough.
"""

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pulsar_sidecar.features.pins.causes import collecting, starting
from pulsar_sidecar.features.pins.ledgers_on_bookies import LedgersOnBookies, OnBookie, read_ledgers
from pulsar_sidecar.features.pins.ports import Bookies
from pulsar_sidecar.features.pins.results import LISTED, BookieFigures, BookiePins, Remedy, Share
from pulsar_sidecar.model.clocks import Clock, rest_seconds
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import BookieId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.ownership.ports import EveryLedger
from pulsar_sidecar.ownership.registrations import BookieState

_PATIENCE_SECONDS: Final = 45.0
"""Less than the commands' time-out of a minute, so that callers receive the progress."""
_KEPT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Ledgers:
    """All ledgers as of ``read_ms``, and their sums."""

    read_ms: int
    found: LedgersOnBookies
    by_bookie: Mapping[BookieId, OnBookie]


@dataclass(slots=True)
class _Reading:
    """Reading of all ledgers: their number so far, and its result or its error once it is over."""

    count: int = 0
    ledgers: _Ledgers | None = None
    failure: SidecarError | None = None


class BookiesReader:
    """Reader of all ledgers' metadata, at most once a minute and a tenth of the time; callers share one reading.

    A reading outlives callers that do not wait for its end.
    """

    def __init__(
        self, every: EveryLedger, bookies: Bookies, clock: Clock, *, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._every, self._bookies, self._clock, self._patience_seconds = every, bookies, clock, patience_seconds
        self._turn = threading.Condition()
        self._current: _Reading | None = None
        self._kept: tuple[float, _Ledgers] | None = None

    def bookies(self) -> list[BookiePins]:
        """Return the bookies that are registered, have a cookie, or are named by a ledger, without owners.

        Raises:
            TemporaryError: the metadata store could not be read, or the reading takes longer.
        """
        ledgers, states = self._ledgers(), self._bookies.known()
        figures = self._bookies.figures(sorted({*states, *ledgers.by_bookie}))
        return [_pins(bookie, states, ledgers, read) for bookie, read in figures.items()]

    def bookie(self, bookie: BookieId, *, by_topic: bool, offset: int, limit: int) -> BookiePins:
        """Return one bookie, with its largest owners.

        Raises:
            NotFoundError: no such bookie is known, and no ledger has entries there.
            TemporaryError: the metadata store could not be read, or the reading takes longer.
        """
        ledgers, states = self._ledgers(), self._bookies.known()
        if bookie not in ledgers.by_bookie and bookie not in states:
            raise NotFoundError(f"there is no bookie {bookie}; list them with: pulsar-sidecar pins bookies")
        shares = _shares(ledgers.found, bookie, by_topic=by_topic)
        found = _pins(bookie, states, ledgers, self._bookies.figures([bookie])[bookie])
        return replace(found, owners=len(shares), shares=tuple(shares[offset : offset + limit]))

    def _ledgers(self) -> _Ledgers:
        with self._turn:
            if self._kept is not None and self._clock.monotonic_seconds() <= self._kept[0]:
                return self._kept[1]
            reading = self._current
            if reading is None:
                reading = self._current = _Reading()
                threading.Thread(target=self._read, args=(reading,), name="pins-ledgers", daemon=True).start()
            self._turn.wait_for(lambda: reading.ledgers or reading.failure, self._patience_seconds)
            if reading.ledgers is not None:
                return reading.ledgers
            if reading.failure is not None:
                raise TemporaryError(str(reading.failure)) from reading.failure
            raise TemporaryError(
                f"the sidecar is reading all ledgers, {reading.count:,} so far; repeat the request in a minute"
            )

    def _read(self, reading: _Reading) -> None:
        def note(count: int) -> None:
            reading.count = count

        read_ms, began = self._clock.now_ms(), self._clock.monotonic_seconds()
        ledgers: _Ledgers | None = None
        failure = SidecarError("the ledgers could not all be read; see the log")
        try:
            found = read_ledgers(self._every(), note)
            ledgers = _Ledgers(read_ms, found, found.by_bookie())
        except SidecarError as error:
            failure = error
        finally:
            ended = self._clock.monotonic_seconds()
            with self._turn:
                self._current = None
                if ledgers is None:
                    reading.failure = failure
                else:
                    reading.ledgers = ledgers
                    self._kept = ended + rest_seconds(_KEPT_SECONDS, ended - began), ledgers
                self._turn.notify_all()


def _pins(
    bookie: BookieId,
    states: Mapping[BookieId, BookieState],
    ledgers: _Ledgers,
    read: BookieFigures | Unreadable,
) -> BookiePins:
    there, state = ledgers.by_bookie.get(bookie, OnBookie()), states.get(bookie, BookieState.DOWN)
    unreadable = ledgers.found.unreadable
    figures, problem = (None, read.reason) if isinstance(read, Unreadable) else (read, None)
    return BookiePins(
        bookie=bookie,
        state=state,
        read_ms=ledgers.read_ms,
        ledgers=there.ledgers,
        open_ledgers=there.open_ledgers,
        size_bytes=there.size_bytes,
        figures=figures,
        problem=problem,
        uncollected_at_most_bytes=None if figures is None else _at_most(figures),
        uncollected_ledgers=None if figures is None else max(0, figures.ledgers - there.ledgers),
        unreadable_ledgers=len(unreadable),
        unreadable_ledger_ids=unreadable[:LISTED],
        remedies=_remedies(bookie, state, figures),
    )


def _shares(ledgers: LedgersOnBookies, bookie: BookieId, *, by_topic: bool) -> list[Share]:
    found: dict[str | None, OnBookie] = defaultdict(OnBookie)
    for topic, there in ledgers.owners_on(bookie):
        found[None if topic is None else str(topic) if by_topic else topic.namespace] += there
    largest = sorted(found.items(), key=lambda each: (-each[1].size_bytes, each[0] or ""))
    return [Share(owner, there.ledgers, there.size_bytes) for owner, there in largest]


def _remedies(bookie: BookieId, state: BookieState, figures: BookieFigures | None) -> tuple[Remedy, ...]:
    if state is BookieState.DOWN:
        return starting(bookie)
    return () if figures is None else collecting(figures)


def _at_most(figures: BookieFigures) -> int:
    return max(0, (figures.entry_logs + 1) * figures.entry_log_limit_bytes - figures.live_bytes)
