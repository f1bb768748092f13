"""Watch of changes to topics' own nodes, for the index of shadow topics; see `zookeeper_watches` for its limits.

When a `sync` is answered, the server has applied every earlier change, and has sent its event: the events taken then
are all changes before the call. That costs one round trip, and writes no node.
"""

from collections.abc import Sequence

from kazoo.client import KazooClient

from pulsar_sidecar.adapters.heard_changes import topic_scope
from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS, SessionOptions
from pulsar_sidecar.adapters.zookeeper.session import Deadline, KazooSession
from pulsar_sidecar.adapters.zookeeper.zookeeper_watches import ZooKeeperWatches
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
        """Connect as `KazooSession` and return at once."""
        super().__init__(KazooSession(url, clock, options), topic_scope(most_waiting))

    def catch_up(self) -> Sequence[str]:
        hearing = self._armed()
        # First: do not wait for a connection that is gone for good.
        hearing.demand_whole()

        def attempt(client: KazooClient, deadline: Deadline) -> None:
            hearing.demand_whole(client=client)
            deadline.answer(client.sync_async("/"))

        self._session.reading("catch up with the metadata store", attempt)
        return hearing.take(0).nodes
