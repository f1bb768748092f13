"""Hears what changes among ledgers and what may reference them, for the watch for leaked ledgers.

What `StoreChanges.echo_seconds` waits for is behind every earlier change in the order of the stream, so the next
`StoreChanges.take` has them all. How changes are heard, and what ZooKeeper does not report, is in `zookeeper_watches`.
"""

import secrets
from functools import partial

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pulsar_sidecar.adapters.metadata.session import DEFAULT_OPTIONS, KazooSession, Patience, SessionOptions
from pulsar_sidecar.adapters.metadata.zookeeper import create_parents
from pulsar_sidecar.adapters.metadata.zookeeper_watches import CANARIES, Scope, ZooKeeperWatches
from pulsar_sidecar.ledger_deletion.watch.ports import Changes
from pulsar_sidecar.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, MANAGED_LEDGERS, SCHEMAS
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError

MOST_WAITING = 1_000_000
_REFERRING = (f"{MANAGED_LEDGERS}/", f"{SCHEMAS}/")


class ZooKeeperChanges(ZooKeeperWatches):
    """`ledger_deletion.watch.ports.StoreChanges` on a ZooKeeper session of its own.

    At most `MOST_WAITING` nodes and ledgers (about 200 MB) wait to be taken. `close` may be called by any thread, the
    other methods by one at a time.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        ledgers_root: str = DEFAULT_LEDGERS_ROOT,
        *,
        options: SessionOptions = DEFAULT_OPTIONS,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Returns at once; see `KazooSession`. An echo is waited for as long as any other answer."""
        roots = (MANAGED_LEDGERS, SCHEMAS, ledgers_root, CANARIES)
        scope = Scope(roots, lambda path: path.startswith(_REFERRING), most_waiting, ledgers_root)
        super().__init__(KazooSession(url, clock, options), scope)
        self._clock = clock

    def take(self, wait_seconds: float) -> Changes:
        return self._armed().take(wait_seconds)

    def echo_seconds(self) -> float:
        """See `StoreChanges.echo_seconds`.

        Raises:
            TemporaryError: ZooKeeper refuses to let the node be made; what is heard is not in doubt.
        """
        hearing = self._armed()
        canary = f"{CANARIES}/{secrets.token_hex(8)}"
        echo = hearing.expect(canary)
        patience = self._session.patience()
        try:
            started = self._make(canary)
        except OutcomeUnknownError as error:
            raise hearing.lost("the outcome of writing the canary node is unknown") from error
        except TemporaryError as error:
            hearing.demand_whole(error)
            raise
        if not echo.wait(patience.remaining_seconds()):
            raise hearing.lost("the event of a canary node did not arrive")
        hearing.demand_whole()
        return self._clock.monotonic_seconds() - started

    def _make(self, canary: str) -> float:
        """Write a node and have it removed; when it was asked for."""

        def attempt(client: KazooClient, patience: Patience) -> float:
            started = self._clock.monotonic_seconds()
            created = client.create_async(canary, ephemeral=True)
            client.delete_async(canary)
            patience.answer(created)
            return started

        try:
            return self._session.writing("write a canary", attempt)
        except NoNodeError:
            self._session.reading("create the parents of canaries", partial(create_parents, canary))
            return self._session.writing("write a canary", attempt)
