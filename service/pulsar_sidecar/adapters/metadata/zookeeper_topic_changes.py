"""Hears which topics' own nodes change, for the index of shadow topics; `zookeeper_watches` has how and its limits.

Where a `sync` is answered, the server has applied every change that was made before it, and has sent its event: what is
taken then is everything that changed before the call. That costs one round trip, and no node is written.
"""

from collections.abc import Sequence

from kazoo.client import KazooClient

from pulsar_sidecar.adapters.metadata.session import DEFAULT_OPTIONS, KazooSession, Patience, SessionOptions
from pulsar_sidecar.adapters.metadata.zookeeper_watches import Scope, ZooKeeperWatches
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS, is_topic_node
from pulsar_sidecar.model.clocks import Clock

MOST_WAITING = 100_000


class ZooKeeperTopicChanges(ZooKeeperWatches):
    """`ledger_deletion.watch.ports.TopicChanges` on a ZooKeeper session of its own.

    At most `MOST_WAITING` nodes (about 20 MB) wait to be taken. `close` may be called by any thread, the other methods
    by one at a time.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        options: SessionOptions = DEFAULT_OPTIONS,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Returns at once; see `KazooSession`."""
        scope = Scope((MANAGED_LEDGERS, PARTITIONED_TOPICS), is_topic_node, most_waiting)
        super().__init__(KazooSession(url, clock, options), scope)

    def catch_up(self) -> Sequence[str]:
        hearing = self._armed()
        # First: a connection that is gone for good is not waited for.
        hearing.demand_whole()

        def attempt(client: KazooClient, patience: Patience) -> None:
            hearing.demand_whole(client=client)
            patience.answer(client.sync_async("/"))

        self._session.reading("catch up with the metadata store", attempt)
        return hearing.take(0).nodes
