"""Operators' orders to append one leaked ledger although the watch only reports; nothing else remembers them."""

from concurrent.futures import Future

from pulsar_sidecar.ledger_deletion.watch.service import Leak
from pulsar_sidecar.ledger_deletion.watch.tracked import TrackedLedger
from pulsar_sidecar.model.errors import SidecarError, TemporaryError


class LeakOrders:
    """Each is answered once: with the leak once it is appended, or with the reason why it was not."""

    def __init__(self) -> None:
        self._orders: dict[str, tuple[TrackedLedger, Future[Leak]]] = {}

    def give(self, tracked: TrackedLedger) -> Future[Leak]:
        """The answer to come; the earlier one's where it was ordered already."""
        if not self.has(tracked):
            self._orders[tracked.key] = (tracked, Future())
        return self._orders[tracked.key][1]

    def has(self, tracked: TrackedLedger) -> bool:
        """Whether somebody waits for it to be appended."""
        order = self._orders.get(tracked.key)
        return order is not None and not order[1].cancelled()

    def answer(self, tracked: TrackedLedger, outcome: Leak | SidecarError) -> None:
        """End the order about this one, if there is one."""
        _, order = self._orders.pop(tracked.key, (None, None))
        if order is None or not order.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Leak):
            order.set_result(outcome)
        else:
            order.set_exception(outcome)

    def give_up(self) -> None:
        """Tell all who wait that this sidecar no longer watches."""
        for tracked, _ in list(self._orders.values()):
            ended = f"{tracked} was not appended before this sidecar ceased to watch; order it again"
            self.answer(tracked, TemporaryError(ended))
