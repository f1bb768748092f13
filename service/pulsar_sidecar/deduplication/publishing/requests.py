"""What a user of ``pulsar-sidecar publish`` asks for, and what comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.deduplication.publishing.messages import BatchLimits
from pulsar_sidecar.deduplication.publishing.records import RecordFormat
from pulsar_sidecar.deduplication.publishing.routing import HashingScheme
from pulsar_sidecar.model.client_conf import NO_CLIENT_CONF, ClientConf
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """How brokers are reached."""

    broker_service_url: str
    web_service_url: str
    client: ClientConf = NO_CLIENT_CONF


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """What to publish.

    Attributes:
        topic: without a partition's number, or with it to publish to that partition alone.
        is_complete: the file is complete, so a last line without a newline is a record too.
        is_fresh: the producer name must not have published anything yet.
        records_per_second: None for no limit.
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
    """``pulsar-sidecar publish``; ``checkpoint`` is where to keep it, None for beside the file."""

    file: Path
    checkpoint: Path | None
    brokers: BrokerAccess
    publish: PublishRequest


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """One partition afterwards: its last record, None where it has none, and where that was stored if it is known."""

    last_sequence_id: int | None
    position: Position | None


@dataclass(frozen=True, slots=True)
class Published:
    """A run's end: ``records == stored_earlier + stored + duplicates``.

    Attributes:
        records: published by now, all runs together.
        stored_earlier: of them, those that earlier runs had stored and this one did not send again.
        stored: in this run; in a dry run, those that would be.
        duplicates: sent in this run and refused by a broker, because it had them.
        bytes: so many of the file are published by now, without a gap.
        sha256: of these bytes; None for none.
        unfinished_at: the byte at which a last record begins that the file does not hold to its end; None for none.
        is_stopped: whether a signal ended it before the file's end.
        partitions: in their order; in a dry run as they are now.
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
