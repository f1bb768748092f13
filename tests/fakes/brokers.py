"""Brokers' views of ledgers, and their deletion of topics, in memory.

Invariant: these fakes allow only what a cluster allows; ``tests/contract/test_live_owners.py`` runs one suite on both.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError, PermanentError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.pulsar_versions import Line
from pulsar_sidecar.model.topic_stats import TopicInternalStats

from tests.fakes.hooks import AnswerLostError, Hooks


class FakeLiveOwners:
    """Brokers whose loaded topics a test chooses; ``asked`` has the topics of every call of `views`."""

    def __init__(self) -> None:
        self.hooks = Hooks()
        self.asked: list[frozenset[TopicName]] = []
        self._views: dict[TopicName, TopicInternalStats] = {}
        self._urls: dict[TopicName, str] = {}
        self.connections: Mapping[str, bool] | Unreadable = {}

    def load(self, topic: TopicName, view: TopicInternalStats) -> None:
        self._views[topic] = view

    def unload(self, topic: TopicName) -> None:
        self._views.pop(topic, None)

    def own(self, topic: TopicName, url: str | None) -> None:
        """Make the broker at ``url`` own the topic's bundle; None for no broker."""
        self._urls.pop(topic, None)
        if url is not None:
            self._urls[topic] = url

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        self.asked.append(frozenset(topics))
        self.hooks.arrive("views")
        return {topic: self._views[topic] for topic in topics if topic in self._views}

    def loaded(self, topics: Collection[TopicName]) -> Collection[TopicName]:
        return frozenset(topics) & self._views.keys()

    def replicators(self, topic: TopicName, broker_id: str) -> Mapping[str, bool] | Unreadable:
        self.hooks.arrive("replicators")
        return self.connections

    def owner_url(self, topic: TopicName) -> str | None:
        self.hooks.arrive("owner_url")
        return self._urls.get(topic)


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """A request to `FakeTopicAdmin` to delete a topic, a subscription or a schema."""

    topic: TopicName
    partitioned: bool
    force: bool
    subscription: str | None = None
    schema: bool = False


class FakeTopicAdmin:
    """A broker that deletes topics; ``on_delete`` changes a fake store like the broker would change a real one.

    ``on_delete`` may raise a broker's errors (`NotFoundError`, `BrokerRefusedError`); without it every deletion
    succeeds.

    Attributes:
        connected: clients by topic.
        line: line of the brokers' version.
    """

    def __init__(self, on_delete: Callable[[TopicDeletion], None] | None = None) -> None:
        self.hooks = Hooks()
        self.loads: list[TopicName] = []
        self.deletions: list[TopicDeletion] = []
        self.on_delete = on_delete
        self.connected: dict[TopicName, ConnectedClients] = {}
        self.line: Line = (4, 0)

    def lose_answer_next(self, *, applied: bool, times: int = 1) -> None:
        """Give the next deletions an unknown outcome, with or without effect."""

        def lose() -> None:
            raise AnswerLostError(applied=applied)

        self.hooks.before("delete_topic", lose, times=times)

    def miss_next(self, *, times: int = 1) -> None:
        """Make the broker report for the next deletions that the topic does not exist."""
        self.hooks.fail_next("delete_topic", NotFoundError("the broker knows no such topic"), times=times)

    def after_deletion(self, act: Callable[[TopicDeletion], object]) -> None:
        """Have ``act`` follow each deletion that takes effect, before the broker answers."""
        delete = self.on_delete

        def delete_and_act(deletion: TopicDeletion) -> None:
            if delete is not None:
                delete(deletion)
            act(deletion)

        self.on_delete = delete_and_act

    def load_topics(self, topics: Sequence[TopicName]) -> None:
        for topic in topics:
            with suppress(PermanentError):
                self.hooks.arrive("load_topics")
                self.loads.append(topic)

    def clients_of(self, topics: Sequence[TopicName]) -> Sequence[ConnectedClients]:
        for _ in topics:
            self.hooks.arrive("clients_of")
        return [self.connected.get(topic, ConnectedClients()) for topic in topics]

    def broker_line(self) -> Line:
        return self.line

    def delete_topic(self, topic: TopicName, *, partitioned: bool, force: bool) -> None:
        self._answer(TopicDeletion(topic, partitioned, force))

    def delete_subscription(self, topic: TopicName, subscription: str, *, force: bool) -> None:
        self._answer(TopicDeletion(topic, partitioned=False, force=force, subscription=subscription))

    def delete_schema(self, topic: TopicName) -> None:
        self._answer(TopicDeletion(topic, partitioned=False, force=True, schema=True))

    def _answer(self, deletion: TopicDeletion) -> None:
        try:
            self.hooks.arrive("delete_topic")
        except AnswerLostError as lost:
            if lost.applied:
                self._apply(deletion)
            text = f"no answer to the deletion of {deletion.topic}; read its metadata again"
            raise OutcomeUnknownError(text) from lost
        self._apply(deletion)

    def _apply(self, deletion: TopicDeletion) -> None:
        if self.on_delete is not None:
            self.on_delete(deletion)
        self.deletions.append(deletion)
