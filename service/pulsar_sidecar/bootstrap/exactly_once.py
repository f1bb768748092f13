"""Exactly-once publishing and reading, for Python programs and for the command ``publish``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Unpack

from pulsar_sidecar.adapters.local_files.publishing_files import CheckpointFile, checkpoint_path, source_file
from pulsar_sidecar.adapters.pulsar_client.clients import opened_client
from pulsar_sidecar.adapters.pulsar_client.message_source import ClientMessageSource
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.sequenced_producers import BrokerSequencedProducers
from pulsar_sidecar.adapters.pulsar_wire.topic_tails import BrokerTopicTails
from pulsar_sidecar.bootstrap.process import asked_to_stop
from pulsar_sidecar.features.publishing.file_publisher import FilePublisher, PublishSteps
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher, PublisherOptions
from pulsar_sidecar.features.publishing.reader import ExactlyOnceReader, ReadPosition
from pulsar_sidecar.features.publishing.requests import FilePublishResult, PublishFileRequest
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions, identity_of, parse_credentials
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.progress import Report, ReportWork

_READ_SECONDS = 30.0
"""A producer waits while its topic replays entries for deduplication."""
_STOPPING = "stopping: waiting for confirmations, then writing the checkpoint (repeat the signal to end at once)"


@contextmanager
def sequenced_producers(
    broker_service_url: str,
    web_service_urls: Sequence[str],
    credentials: ClientCredentials,
    tls: TlsOptions,
    clock: Clock,
) -> Iterator[BrokerSequencedProducers]:
    """Yield producers for an `ExactlyOncePublisher`; several addresses help while a broker is down."""
    with ExitStack() as stack:
        connections = stack.enter_context(closing(BinaryConnections(credentials, tls, clock, 5.0, _READ_SECONDS)))
        owners = TopicOwners(broker_service_url, connections)
        rest = AdminRest(web_service_urls, credentials, tls)
        yield stack.enter_context(closing(BrokerSequencedProducers(owners, rest, clock)))


@contextmanager
def open_publisher(
    broker_service_url: str,
    web_service_urls: Sequence[str],
    topic: str,
    *,
    auth_plugin: str | None = None,
    auth_params: str | None = None,
    tls: TlsOptions | None = None,
    **options: Unpack[PublisherOptions],
) -> Iterator[ExactlyOncePublisher]:
    """Yield an `ExactlyOncePublisher` on a cluster; leaving the ``with`` flushes and closes it.

    Args:
        broker_service_url: ``pulsar://host:port[,host:port]`` or ``pulsar+ssl://...``.
        web_service_urls: brokers' admin addresses, to check that deduplication is in effect.
        topic: topic name, in any of Pulsar's spellings.
        auth_plugin: plugin as in ``client.conf``, for example ``token``; None for none.
        auth_params: parameters of the plugin.
        tls: TLS options of connections to brokers.
        options: arguments of `ExactlyOncePublisher`.
    """
    clock = SystemClock()
    credentials = parse_credentials(auth_plugin, auth_params)
    with (
        sequenced_producers(broker_service_url, web_service_urls, credentials, tls or TlsOptions(), clock) as producers,
        ExactlyOncePublisher(producers, clock, parse_topic_name(topic), **options) as publisher,
    ):
        yield publisher


@contextmanager
def open_reader(
    broker_service_url: str,
    topic: str,
    after: Mapping[int, ReadPosition] | None = None,
    *,
    auth_plugin: str | None = None,
    auth_params: str | None = None,
    tls: TlsOptions | None = None,
) -> Iterator[ExactlyOnceReader]:
    """Yield an `ExactlyOnceReader` on a cluster, after the positions that the program has stored.

    Args:
        broker_service_url: ``pulsar://host:port[,host:port]`` or ``pulsar+ssl://...``.
        topic: topic name, in any of Pulsar's spellings.
        after: last position stored of each partition (0 for a topic without partitions).
        auth_plugin: plugin as in ``client.conf``, for example ``token``; None for none.
        auth_params: parameters of the plugin.
        tls: TLS options of connections to brokers.
    """
    with (
        opened_client(broker_service_url, parse_credentials(auth_plugin, auth_params), tls) as client,
        ExactlyOnceReader(ClientMessageSource(client), SystemClock(), parse_topic_name(topic), after) as reader,
    ):
        yield reader


def publish_file(
    request: PublishFileRequest, report: Report, report_work: ReportWork, steps: PublishSteps | None = None
) -> FilePublishResult:
    """Publish a file's records with `FilePublisher.run`, until the end of the file or a signal.

    Raises:
        InvalidInputError: the file, the checkpoint or an address cannot be used.
        SidecarError: see `FilePublisher.run`.
    """
    clock = SystemClock()
    brokers = request.brokers
    credentials, tls = identity_of(brokers.client)
    place = request.checkpoint or checkpoint_path(request.file, request.publish.producer_name)
    with ExitStack() as stack:
        source = stack.enter_context(source_file(request.file))
        url = brokers.broker_service_url
        producers = stack.enter_context(sequenced_producers(url, [brokers.web_service_url], credentials, tls, clock))
        connections = stack.enter_context(closing(BinaryConnections(credentials, tls, clock)))
        admin = BrokerTopicAdmin(AdminRest([brokers.web_service_url], credentials, tls))
        stop = stack.enter_context(asked_to_stop(report, _STOPPING))
        publisher = FilePublisher(
            source,
            request.publish,
            producers,
            BrokerTopicTails(TopicOwners(url, connections), admin.internal_stats, admin.stats, clock, report_work),
            CheckpointFile(place),
            clock,
            stop,
            report=report_work,
            steps=steps or PublishSteps(),
        )
        return publisher.run()
