"""Several batches in hand: while one waits for the metadata store or a topic, the next is read and judged.

Invariants: every batch goes through its steps in their order, alone in its thread; batches share nothing but the ports
and know nothing of each other, just like those of two sidecars, whose deletions are fenced by versions; never more than
``most`` are in hand; when one fails, no other is begun, and those in hand come to their end first.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

from pulsar_sidecar.ledger_deletion.ports import Delivery


class BatchesInHand:
    """Has batches settled, each in a thread of its own; the block ends when all of them have ended."""

    def __init__(self, settle: Callable[[Sequence[Delivery]], None], most: int) -> None:
        self._settle = settle
        self._threads = ThreadPoolExecutor(most, "settling")
        self._in_hand: set[Future[None]] = set()

    def wait_for_room(self, most: int) -> None:
        """Wait until fewer than ``most`` are in hand; raises what a batch raised."""
        while True:
            self._collect()
            if len(self._in_hand) < most:
                return
            wait(self._in_hand, return_when=FIRST_COMPLETED)

    def begin(self, deliveries: Sequence[Delivery]) -> None:
        """Have one more settled; it is not waited for."""
        self._in_hand.add(self._threads.submit(self._settle, deliveries))

    def _collect(self) -> None:
        ended = {batch for batch in self._in_hand if batch.done()}
        self._in_hand -= ended
        for batch in ended:
            batch.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown()
        if error is None:
            self._collect()
