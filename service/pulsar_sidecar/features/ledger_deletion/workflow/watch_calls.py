"""Calls about the watch for leaked ledgers, on whichever sidecar they arrive.

Only the watching sidecar knows the leaks. Brake and holds are in the metadata store, so any sidecar changes them,
even while the watch is off: a hold is best set before the watch appends.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Final
from uuid import UUID

import structlog

from pulsar_sidecar.features.ledger_deletion.results import Redirect
from pulsar_sidecar.features.ledger_deletion.watch.control import WatchControl, WatchControlNode, find_leader
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    Leak,
    LeakCause,
    LeakPeriod,
    LeakState,
    LedgerExplanation,
    ListedLeaks,
    WatchMode,
    WatchOrders,
    WatchState,
    WatchStatus,
)
from pulsar_sidecar.features.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.features.ledger_deletion.workflow.watching import LeakWatch
from pulsar_sidecar.model.errors import DisabledError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

log = structlog.get_logger("ledger-deletion")

MOST_PERIODS: Final = 48
_HOUR_MS: Final = 3_600_000
_STEPS_MS: Final = (_HOUR_MS, 6 * _HOUR_MS, 24 * _HOUR_MS)
_WEEK_MS: Final = 7 * 24 * _HOUR_MS
_APPEND_SECONDS = 30
_OFF = WatchStatus(WatchMode.OFF, WatchState.OFF, None, None, ())


class WatchCalls:
    """Calls of one sidecar; each raises one of `model.errors`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._control_node = WatchControlNode(runtime.ports.store)

    def status(self) -> WatchStatus:
        """Return the state of the watch, even where it is switched off; never a redirect."""
        control, leader = self._control_node.read(), find_leader(self._runtime.ports.store)
        return replace(self.readings() or _OFF, leader=leader, braked=control.braked, holds=control.holds)

    def readings(self) -> WatchStatus | None:
        """Return the state from memory, for metrics; None while two-phase deletion is off."""
        if not self._runtime.configuration.enabled:
            return None
        watch = self._runtime.leak_watch
        return _OFF if watch is None else watch.readings()

    def leaks(
        self, *, state: LeakState | None, cause: LeakCause | None, ended: bool, limit: int, offset: int = 0
    ) -> ListedLeaks | Redirect:
        """Return the unreferenced ledgers, the oldest first, and ended leaks if wanted.

        Raises:
            DisabledError: the settings of this sidecar disable the watch.
            TemporaryError: no sidecar is watching yet, or the watching one is still reading.
        """
        watch = self._leading_watch()
        if isinstance(watch, Redirect):
            return watch
        found = [
            leak
            for leak in watch.leaks(ended=ended or state in (LeakState.DELETED, LeakState.LINKED))
            if state in (None, leak.state) and (cause is None or leak.cause is cause)
        ]
        return listed_leaks(found, limit, offset)

    def explain(self, ledger_id: LedgerId) -> LedgerExplanation | Redirect:
        """Return the watch's facts about one ledger; raises as `leaks` does."""
        watch = self._leading_watch()
        return watch if isinstance(watch, Redirect) else watch.explain(ledger_id)

    def append(self, ledger_id: LedgerId, offload_attempt: UUID | None = None) -> Leak | Redirect:
        """Append a leaked ledger even if the watch only reports; raises as `leaks` and `LeakTracker.request_append`.

        Returns once the ledger is appended: a request that only this sidecar knew would be lost with it.
        """
        watch = self._leading_watch()
        if isinstance(watch, Redirect):
            return watch
        log.info("append of a leaked ledger requested", ledger_id=ledger_id)
        appending = watch.request_append(ledger_id, offload_attempt)
        try:
            return appending.result(_APPEND_SECONDS)
        except (TimeoutError, CancelledError) as error:
            appending.cancel()
            raise TemporaryError(
                f"the watch did not append ledger {ledger_id} within {_APPEND_SECONDS} s, and stopped trying; see "
                "pulsar-sidecar ledger-deletion watch status, and retry the request"
            ) from error

    def control(self) -> WatchOrders:
        """Return the brake and the hold list."""
        return _orders(self._control_node.read())

    def brake(self, reason: str) -> WatchOrders:
        """Engage the brake: append nothing until `resume`; an earlier reason stays."""
        return self._changed(self._control_node.brake(reason))

    def resume(self) -> WatchOrders:
        """Release the brake."""
        return self._changed(self._control_node.resume())

    def hold(self, item: str) -> WatchOrders:
        """Never append what ``item`` names; raises as `WatchControlNode.hold` does."""
        return self._changed(self._control_node.hold(item))

    def release_hold(self, item: str) -> WatchOrders:
        """Release a hold; raises as `WatchControlNode.release_hold` does."""
        return self._changed(self._control_node.release_hold(item))

    def _leading_watch(self) -> LeakWatch | Redirect:
        """Return this sidecar's own watch if it leads, or a redirect to the leader."""
        self._runtime.require_enabled()
        watch = self._runtime.leak_watch
        if watch is None:
            raise DisabledError("this sidecar does not watch for leaked ledgers: set ledgerDeletionWatch=report")
        if watch.leads:
            if watch.readings().walked_ms is None:
                raise TemporaryError("the watch is still reading the whole metadata store; retry once it has finished")
            return watch
        leader = find_leader(self._runtime.ports.store)
        # The sidecar must not redirect to itself: an earlier run's session has not expired yet.
        if leader is None or leader.advertised_url == self._runtime.instance.advertised_url:
            raise TemporaryError("no sidecar is watching yet; one takes over within a session timeout, so retry")
        return Redirect(leader.advertised_url)

    def _changed(self, control: WatchControl) -> WatchOrders:
        log.info("the watch's brake or holds changed", braked=control.braked, holds=len(control.holds))
        return _orders(control)


def _orders(control: WatchControl) -> WatchOrders:
    return WatchOrders(control.braked, control.holds)


def listed_leaks(found: Sequence[Leak], limit: int, offset: int) -> ListedLeaks:
    """Return a part of the found leaks, and figures of all of them."""
    by_cause = Counter("unknown" if leak.cause is None else leak.cause.value for leak in found)
    trend = trend_of([leak.since_ms for leak in found])
    return ListedLeaks(len(found), by_cause, trend, tuple(found[offset : offset + limit]))


def trend_of(since_ms: Sequence[int]) -> tuple[LeakPeriod, ...]:
    """Return leaks by the time of losing the last reference, in at most `MOST_PERIODS` periods of equal length.

    A period is 1, 6 or 24 hours, or whole weeks; the first and the last have leaks, others may have none.
    """
    if not since_ms:
        return ()
    span_ms = max(since_ms) - min(since_ms)
    weeks = span_ms // (_WEEK_MS * (MOST_PERIODS - 1)) + 1
    step_ms = next((step for step in _STEPS_MS if span_ms // step < MOST_PERIODS - 1), weeks * _WEEK_MS)
    first, last = min(since_ms) // step_ms, max(since_ms) // step_ms
    found = Counter(each // step_ms for each in since_ms)
    return tuple(LeakPeriod(period * step_ms, found[period]) for period in range(first, last + 1))
