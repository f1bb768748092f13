"""The calls about the watch for leaked ledgers, on whichever sidecar they arrive.

The sidecar that watches knows the leaks; what operators order is in the metadata store, so any sidecar takes it,
also while the watch is off: a hold is best set before the watch appends.
"""

from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace
from uuid import UUID

import structlog

from pulsar_sidecar.ledger_deletion.service import Redirect
from pulsar_sidecar.ledger_deletion.watch.control import WatchControl, WatchControlNode, find_leader
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.service import (
    Leak,
    LeakState,
    LedgerExplanation,
    ListedLeaks,
    WatchMode,
    WatchState,
    WatchStatus,
    trend_of,
)
from pulsar_sidecar.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.ledger_deletion.workflow.watching import LeakWatch
from pulsar_sidecar.model.errors import DisabledError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

log = structlog.get_logger("ledger-deletion")

_ORDER_SECONDS = 30
_OFF = WatchStatus(WatchMode.OFF, WatchState.OFF, None, None, ())


class WatchCalls:
    """One sidecar's answers; every call raises one of `model.errors`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._control_node = WatchControlNode(runtime.ports.store)

    def status(self) -> WatchStatus:
        """The state of the watch, also where it is switched off; never a redirect."""
        control, leader = self._control_node.read(), find_leader(self._runtime.ports.store)
        return replace(self.readings() or _OFF, leader=leader, braked=control.braked, holds=control.holds)

    def readings(self) -> WatchStatus | None:
        """The state from memory, for metrics; None while two-phase deletion is off."""
        if not self._runtime.configuration.enabled:
            return None
        watch = self._runtime.leak_watch
        return _OFF if watch is None else watch.readings()

    def leaks(
        self, *, state: LeakState | None, cause: LeakCause | None, ended: bool, limit: int, offset: int = 0
    ) -> ListedLeaks | Redirect:
        """The ledgers that nothing references, the oldest first, with those that came to an end, if wanted.

        Raises:
            DisabledError: this sidecar does not watch, by its settings.
            TemporaryError: no sidecar watches yet, or it is still reading.
        """
        watch = self._leading_watch()
        if isinstance(watch, Redirect):
            return watch
        found = [
            leak
            for leak in watch.leaks(ended=ended or state in (LeakState.DELETED, LeakState.LINKED))
            if state in (None, leak.state) and (cause is None or leak.cause is cause)
        ]
        by_cause = Counter(leak.cause for leak in found)
        trend = trend_of([leak.since_ms for leak in found])
        return ListedLeaks(tuple(found[offset : offset + limit]), len(found), by_cause, trend)

    def explain(self, ledger_id: LedgerId) -> LedgerExplanation | Redirect:
        """Everything that is known of one ledger; raises what `leaks` does."""
        watch = self._leading_watch()
        return watch if isinstance(watch, Redirect) else watch.explain(ledger_id)

    def append(self, ledger_id: LedgerId, offload_attempt: UUID | None = None) -> Leak | Redirect:
        """Append a leaked ledger although the watch only reports; raises what `leaks` and `LeakTracker.order` do.

        It returns once the ledger is appended: an order that only this sidecar knew would be lost with it.
        """
        watch = self._leading_watch()
        if isinstance(watch, Redirect):
            return watch
        log.info("an operator wants a leaked ledger appended", ledger_id=ledger_id)
        order = watch.order(ledger_id, offload_attempt)
        try:
            return order.result(_ORDER_SECONDS)
        except (TimeoutError, CancelledError) as error:
            order.cancel()
            raise TemporaryError(
                f"the watch did not append ledger {ledger_id} within {_ORDER_SECONDS} s, and no longer tries; see "
                "pulsar-sidecar ledger-deletion watch status, and order it again"
            ) from error

    def control(self) -> WatchControl:
        """The brake and the hold list."""
        return self._control_node.read()

    def brake(self, reason: str) -> WatchControl:
        """Append nothing until `resume`; the reason of a brake that holds already stays."""
        return self._changed(self._control_node.brake(reason))

    def resume(self) -> WatchControl:
        """Release the brake."""
        return self._changed(self._control_node.resume())

    def hold(self, item: str) -> WatchControl:
        """Never append what ``item`` names; raises what `WatchControlNode.hold` does."""
        return self._changed(self._control_node.hold(item))

    def unhold(self, item: str) -> WatchControl:
        """Take a hold back; raises what `WatchControlNode.unhold` does."""
        return self._changed(self._control_node.unhold(item))

    def _leading_watch(self) -> LeakWatch | Redirect:
        """This sidecar's own watch if its answers are whole, or where to ask instead."""
        self._runtime.require_enabled()
        watch = self._runtime.leak_watch
        if watch is None:
            raise DisabledError("this sidecar does not watch for leaked ledgers: set ledgerDeletionWatch=report")
        if watch.leads:
            if watch.readings().walked_ms is None:
                raise TemporaryError("the watch is still reading the metadata store whole; ask again when it watches")
            return watch
        leader = find_leader(self._runtime.ports.store)
        # Under its own address this sidecar would only find itself: an earlier run's session is not over yet.
        if leader is None or leader.advertised_url == self._runtime.instance.advertised_url:
            raise TemporaryError("no sidecar watches yet; one takes over within a session's timeout, so ask again")
        return Redirect(leader.advertised_url)

    def _changed(self, control: WatchControl) -> WatchControl:
        log.info("the watch's brake or holds changed", braked=control.braked, holds=len(control.holds))
        return control
