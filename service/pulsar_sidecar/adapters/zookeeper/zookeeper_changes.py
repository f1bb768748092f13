"""Watches of changes to ledgers and to nodes that may reference them, and to topics' own nodes.

The event that `StoreChanges.echo_seconds` waits for follows every earlier change in the order of the stream, so the
next `StoreChanges.take` has them all. `zookeeper_watches` explains the mechanism, and what ZooKeeper does not report.
"""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from pulsar_sidecar.adapters.heard_changes import store_scope, topic_scope
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS, SessionOptions
from pulsar_sidecar.adapters.zookeeper.session import Deadline, KazooSession
from pulsar_sidecar.adapters.zookeeper.zookeeper import create_parents
from pulsar_sidecar.adapters.zookeeper.zookeeper_watches import CANARIES, ZooKeeperWatches
from pulsar_sidecar.features.ledger_deletion.watch.ports import Changes
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

MOST_WAITING = 1_000_000
MOST_TOPICS_WAITING = 100_000


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
        """Connect as `KazooSession` and return at once. The wait for an echo is as long as for any other response."""
        scope = store_scope(ledgers_root, most_waiting)
        scope = replace(scope, roots=(*scope.roots, CANARIES))
        super().__init__(KazooSession(url, clock, options), scope)
        self._clock = clock

    def take(self, wait_seconds: float) -> Changes:
        return self._armed().take(wait_seconds)

    def echo_seconds(self) -> float:
        """Measure as `StoreChanges.echo_seconds`.

        Raises:
            TemporaryError: ZooKeeper refuses to create the node; the events are not in doubt.
        """
        hearing = self._armed()
        canary = f"{CANARIES}/{secrets.token_hex(8)}"
        echo = hearing.expect(canary)
        deadline = self._session.deadline()
        try:
            started = self._make(canary)
        except OutcomeUnknownError as error:
            raise hearing.lost("the outcome of writing the canary node is unknown") from error
        except TemporaryError as error:
            hearing.demand_whole(error)
            raise
        if not echo.wait(deadline.remaining_seconds()):
            raise hearing.lost("the event of a canary node did not arrive")
        hearing.demand_whole()
        return self._clock.monotonic_seconds() - started

    def _make(self, canary: str) -> float:
        """Create and delete a node; return the time of the request."""

        def attempt(client: KazooClient, deadline: Deadline) -> float:
            started = self._clock.monotonic_seconds()
            created = client.create_async(canary, ephemeral=True)
            client.delete_async(canary)
            deadline.answer(created)
            return started

        try:
            return self._session.writing("write a canary", attempt)
        except NoNodeError:
            self._session.reading("create the parents of canaries", partial(create_parents, canary))
            return self._session.writing("write a canary", attempt)


class ZooKeeperTopicChanges(ZooKeeperWatches):
    """`ledger_deletion.watch.ports.TopicChanges` on a ZooKeeper session of its own.

    When a `sync` completes, the server has applied every earlier change, and has sent its event: the events taken
    then are all changes before the call. That costs one round trip, and writes no node.

    `close` may be called by any thread, the other methods by one at a time.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        options: SessionOptions = DEFAULT_OPTIONS,
        most_waiting: int = MOST_TOPICS_WAITING,
    ) -> None:
        """Connect as `KazooSession` and return at once."""
        super().__init__(KazooSession(url, clock, options), topic_scope(most_waiting))

    def catch_up(self) -> Sequence[str]:
        hearing = self._armed()
        # First: do not wait for a connection that is permanently gone.
        hearing.demand_whole()

        def attempt(client: KazooClient, deadline: Deadline) -> None:
            hearing.demand_whole(client=client)
            deadline.answer(client.sync_async("/"))

        self._session.reading("catch up with the metadata store", attempt)
        return hearing.take(0).nodes
