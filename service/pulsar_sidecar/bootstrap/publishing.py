"""The composition root of publishing a file: it needs brokers, their admin REST service and the file, nothing else."""

from contextlib import ExitStack, closing

from pulsar_sidecar.adapters.local_files.publishing_files import CheckpointFile, checkpoint_path, source_file
from pulsar_sidecar.adapters.pulsar.credentials import identity_of
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar.wire.topic_tails import BrokerTopicTails
from pulsar_sidecar.bootstrap.exactly_once import sequenced_producers
from pulsar_sidecar.bootstrap.process import asked_to_stop
from pulsar_sidecar.deduplication.publishing.file_publisher import FilePublisher, PublishSteps, ReportBytes
from pulsar_sidecar.deduplication.publishing.requests import Published, PublishFileRequest
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.progress import Report

_STOPPING = "stopping: waiting until what was sent is confirmed, then writing the checkpoint (again: end at once)"


def publish_file(
    request: PublishFileRequest, report: Report, report_bytes: ReportBytes, steps: PublishSteps | None = None
) -> Published:
    """Publish a file's records, as `FilePublisher.run`, until its end or a signal.

    Raises:
        InvalidInputError: the file, the checkpoint or an address cannot be used.
        SidecarError: as `FilePublisher.run`.
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
            BrokerTopicTails(TopicOwners(url, connections), connections, admin.internal_stats, clock),
            CheckpointFile(place),
            clock,
            stop,
            report=report_bytes,
            steps=steps,
        )
        return publisher.run()
