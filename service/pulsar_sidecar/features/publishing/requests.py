"""Requests of ``pulsar-sidecar publish``, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.features.publishing.messages import BatchLimits
from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.client_conf import NO_CLIENT_CONF, ClientConf
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """Addresses of brokers, and how to connect to them."""

    broker_service_url: str
    web_service_url: str
    client: ClientConf = NO_CLIENT_CONF


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """Request to publish.

    Attributes:
        topic: topic without a partition's number, or with it to publish to that partition alone.
        is_complete: True if the file is complete, so that a last line without a newline is a record too.
        is_fresh: True if the producer name must not have published anything yet.
        records_per_second: maximum rate; None for no limit.
    """

    topic: TopicName
    producer_name: str
    record_format: RecordFormat = RecordFormat.LINES
    is_complete: bool = False
    is_fresh: bool = False
    is_dry_run: bool = False
    records_per_second: float | None = None
    limits: BatchLimits = field(default_factory=BatchLimits)
    hashing: HashingScheme = HashingScheme.JAVA_STRING_HASH


@dataclass(frozen=True, slots=True)
class PublishFileRequest:
    """Arguments of ``pulsar-sidecar publish``; a ``checkpoint`` of None is beside the file."""

    file: Path
    checkpoint: Path | None
    brokers: BrokerAccess
    publish: PublishRequest


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """Last record of a partition, None where it has none, and its position if that is known."""

    last_sequence_id: int | None
    position: Position | None


@dataclass(frozen=True, slots=True)
class FilePublishResult:
    """Result of a run: ``records == stored_earlier + stored + duplicates``.

    Attributes:
        records: records published by now, by all runs together.
        stored_earlier: records that earlier runs had stored and this one did not resend.
        stored: records stored in this run; in a dry run, those that would be.
        duplicates: records sent in this run that a broker refused, because it had them.
        bytes: bytes of the file that are published by now, without a gap.
        sha256: sum of these bytes; None for none.
        unfinished_at: byte at which an incomplete last record of the file begins; None for none.
        is_stopped: True if a signal ended the run before the file's end.
        partitions: partitions in their order; in a dry run as they are now.
    """

    records: int
    stored_earlier: int
    stored: int
    duplicates: int
    bytes: int
    sha256: str | None
    unfinished_at: int | None
    is_stopped: bool
    partitions: Sequence[PublishedPartition]
