"""Whether loading a topic may delete another topic's ledgers: what nodes tell of shadows, and brokers of retention."""

from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest, topic_path
from pulsar_sidecar.adapters.pulsar.rest.shadow_admin import FOREVER
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.shadows import shadow_at
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName

_APPLIED: Final = {"applied": "true"}


class BrokerShadows:
    """`ack_state.ports.Shadows` and `ledger_deletion.ports.EndangeredSources`."""

    def __init__(self, rest: AdminRest, store: MetadataStore) -> None:
        self._rest = rest
        self._store = store

    def endangered_source(self, topic: TopicName) -> str | None:
        source = self._source(topic)
        return None if source is None or self._keeps_forever(topic) else source

    def _source(self, topic: TopicName) -> str | None:
        paths = [partitioned_topic_path(topic.base), managed_ledger_path(topic.managed_ledger_name)]
        nodes = self._store.read_many(paths)
        shadows = (shadow_at(node.path, node.data) for node in nodes if node is not None)
        return next((shadow.source for shadow in shadows if shadow is not None), None)

    def _keeps_forever(self, topic: TopicName) -> bool:
        """What is in force for the topic, whether it, its namespace or the broker's configuration says so."""
        try:
            return self._rest.get(topic_path(topic.base, "/retention"), _APPLIED) == FOREVER
        except (NotFoundError, BrokerRefusedError):
            # Brokers without topic policies do not tell; nothing is concluded from that.
            return False
