"""Bookies that let somebody wait in vain: stopped processes, hosts that drop packets.

One question about a topic asks the same bookies for many ledgers. Waiting anew for each of them would take minutes, so
for some seconds nobody waits for such a bookie again; then the next caller does.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.model.ids import BookieId

_SECONDS = 15.0


class SilentBookies:
    """For any number of threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[BookieId, float] = {}

    @contextmanager
    def asking(self, bookie: BookieId) -> Iterator[None]:
        """Raise `UnreachableError` where a caller has just waited for it in vain; note where this one does."""
        since = self._since.get(bookie)
        if since is not None and self._clock.monotonic_seconds() - since < _SECONDS:
            raise UnreachableError(f"bookie {bookie} did not answer a moment ago; try again in {_SECONDS:.0f} s")
        try:
            yield
        except UnreachableError as error:
            if isinstance(error.__cause__, TimeoutError):
                self._since[bookie] = self._clock.monotonic_seconds()
            raise
        self._since.pop(bookie, None)
