"""The sidecar's identity in front of brokers that require one."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.pulsar_client.clients import open_client
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import PulsarDeletionTopics, topic_name
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, OutgoingMessage, PublishResult
from pulsar_sidecar.identity.credentials import ClientCredentials, parse_credentials
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import NotAuthorizedError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.running import ClusterUnderTest
from tests.cluster.tokens import token

CLOCK = SystemClock()


def topics_of(cluster: ClusterUnderTest, credentials: ClientCredentials) -> Iterator[PulsarDeletionTopics]:
    client = open_client(cluster.addresses.broker_service_url, credentials)
    yield PulsarDeletionTopics(client, AdminRest(cluster.addresses.web_service_urls, credentials), CLOCK)
    client.close()


def test_a_superuser_s_token_file_opens_everything(guarded: ClusterUnderTest, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token("admin") + "\n")
    credentials = parse_credentials("token", f"file://{file}")
    for topics in topics_of(guarded, credentials):
        topics.ensure()
        before = topics.backlog().total
        publisher = topics.publisher(DeletionTopic.PENDING, f"test-{uuid.uuid4()}")
        assert publisher.publish([OutgoingMessage(b"x")]) == [PublishResult.STORED]
        publisher.close()
        assert topics.backlog().total == before + 1
    with ZooKeeperMetadataStore(guarded.addresses.metadata_store_url, CLOCK) as store:
        owners = BrokerLiveOwners(AdminRest(guarded.addresses.web_service_urls, credentials, store=store), store)
        partition = topic_name(DeletionTopic.PENDING).partition(0)
        assert owners.views([partition, parse_topic_name("unknown")]).keys() == {partition}


def test_a_role_without_the_right_is_refused_by_name(guarded: ClusterUnderTest) -> None:
    secret = token("nobody")
    credentials = parse_credentials("token", f"token:{secret}")
    for topics in topics_of(guarded, credentials):
        with pytest.raises(NotAuthorizedError) as refused:
            topics.ensure()
        with pytest.raises(NotAuthorizedError):
            topics.publisher(DeletionTopic.PENDING, "name")
        assert secret not in str(refused.value)
    with ZooKeeperMetadataStore(guarded.addresses.metadata_store_url, CLOCK) as store:
        owners = BrokerLiveOwners(AdminRest(guarded.addresses.web_service_urls, credentials, store=store), store)
        with pytest.raises(TemporaryError, match="super-user"):
            owners.views([parse_topic_name("unknown")])
