"""Shadow topics (PIP-180) on a real cluster, with their sources and with clients that keep loading them."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pulsar
import requests
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path

from tests.cluster.background import running_until
from tests.cluster.patience import OPERATION_SECONDS
from tests.cluster.topics import KEEP_ALL, Workload

_AS_PROPERTIES = {"Content-Type": "application/vnd.partitioned-topic-metadata+json"}


@dataclass(frozen=True, slots=True)
class Pair:
    """A source, its shadow, and the messages of the source, by topic with a managed ledger."""

    source: TopicName
    shadow: TopicName
    payloads: dict[TopicName, list[bytes]]

    @property
    def sources(self) -> Sequence[TopicName]:
        return list(self.payloads)

    @property
    def shadows(self) -> Sequence[TopicName]:
        parts = [source.partition_index for source in self.sources]
        return [self.shadow if part is None else self.shadow.partition(part) for part in parts]

    def demand_only_the_source(self, workload: Workload) -> None:
        """Demand that the shadow's nodes are gone, the source's ledgers exist, and its messages are readable."""
        assert workload.store.read(partitioned_topic_path(self.shadow)) is None
        for shadow in self.shadows:
            assert workload.store.read(managed_ledger_path(shadow.managed_ledger_name)) is None
        for source, payloads in self.payloads.items():
            data = workload.ledgers(source).data
            assert data
            assert workload.existing(data) == data
            assert workload.read_all(source) == payloads


class Shadows:
    """Pairs of source and shadow in a namespace."""

    def __init__(self, workload: Workload, urls: Sequence[str]) -> None:
        self._workload = workload
        self._urls = urls

    def pair(
        self, source: TopicName, *, ledgers: int = 3, partitions: int = 0, listed: bool = False, kept: bool = True
    ) -> Pair:
        """Create a source, with a subscription at its beginning, and its shadow.

        With ``listed``, brokers replicate to the shadow; with ``kept``, it has infinite retention from the beginning.
        """
        workload = self._workload
        shadow = type(source)(
            source.domain, source.tenant, source.cluster, source.namespace_portion, f"{source.local_name}-shadow"
        )
        if partitions:
            workload.admin("PUT", workload.of_topic(source, "partitions"), partitions)
        sources = [source.partition(index) for index in range(partitions)] or [source]
        payloads = {}
        for each in sources:
            workload.client.subscribe(str(each), "keep", initial_position=pulsar.InitialPosition.Earliest).close()
            payloads[each] = workload.fill(each, ledgers)
        self._create_shadow(source, shadow, partitions)
        if kept:
            workload.admin("POST", workload.of_topic(shadow, "retention"), KEEP_ALL)
        if listed:
            workload.admin("PUT", workload.of_topic(source, "shadowTopics"), [str(shadow)])
        return Pair(source, shadow, payloads)

    def _create_shadow(self, source: TopicName, shadow: TopicName, partitions: int) -> None:
        properties = {"PULSAR.SHADOW_SOURCE": str(source)}
        body: object = {"partitions": partitions, "properties": properties} if partitions else properties
        path = self._workload.of_topic(shadow, "partitions" if partitions else "")
        answer = requests.put(
            f"{self._urls[0]}/admin/v2/{path}", data=json.dumps(body), headers=_AS_PROPERTIES, timeout=OPERATION_SECONDS
        )
        assert answer.status_code < 300, answer.text

    @contextmanager
    def reloading(self, topics: Sequence[TopicName]) -> Iterator[None]:
        """Keep requesting the topics' state from every broker, which loads them at their owners."""
        stop = threading.Event()
        paths = [f"/admin/v2/{self._workload.of_topic(topic, 'internalStats')}" for topic in topics]

        def ask(url: str) -> None:
            with requests.Session() as session:
                while not stop.is_set():
                    for path in paths:
                        try:
                            session.get(url + path, timeout=OPERATION_SECONDS)
                        except requests.RequestException:
                            continue

        with running_until(stop, [partial(ask, url) for url in self._urls]):
            yield
