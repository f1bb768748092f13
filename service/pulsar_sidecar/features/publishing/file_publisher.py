"""Publisher of a file's records, each once and in order, however often it is killed and started again.

A run reads the checkpoint and compares the file with it, opens the producers, examines the brokers' responses, compares
the file with the records published since, and only then publishes. About once a second it waits until everything is
confirmed and writes the checkpoint, which bounds the number of records between two checkpoints, and thus the number
that is read back where the producer alone publishes. It also writes a checkpoint before the first record of each
partition, so that a checkpoint never calls a partition unused that may hold records.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from itertools import takewhile
from typing import BinaryIO, Final, NoReturn, Protocol

from pulsar_sidecar.features.publishing.checkpoint import (
    NOTHING_SENT,
    SENT_BEFORE,
    Checkpoint,
    RollingHash,
    StoredPoint,
    check_same_job,
    verified,
)
from pulsar_sidecar.features.publishing.messages import (
    NOTHING_PUBLISHED,
    Confirmation,
    Outcome,
    OutgoingMessage,
    ProducerStateLostError,
)
from pulsar_sidecar.features.publishing.ports import SequencedProducers
from pulsar_sidecar.features.publishing.publisher import ExactlyOncePublisher
from pulsar_sidecar.features.publishing.records import FileRecord, RecordReader
from pulsar_sidecar.features.publishing.requests import FilePublishResult, PublishedPartition, PublishRequest
from pulsar_sidecar.features.publishing.resume import (
    ResumePoint,
    Tail,
    check_against_file,
    read_back_from,
    resume_point,
)
from pulsar_sidecar.model.clocks import Clock, Pace, StopSignal
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.progress import LongWork, ReportWork
from pulsar_sidecar.reports.formatting import format_count

FLUSH_RECORDS: Final = 50_000
FLUSH_SECONDS: Final = 1.0

_RECORDS_PER_REPORT: Final = 4096


class PublishStep(Enum):
    """Every step with an effect outside this process, and the reads on which it depends, in order.

    A crash around any of them must neither lose a record nor store one twice.
    """

    CHECKPOINT_READ = "checkpoint-read"
    PRODUCERS_OPENED = "producers-opened"
    TAIL_READ_BACK = "tail-read-back"
    FILE_COMPARED = "file-compared"
    RECORD_RESENT = "record-resent"
    RECORD_PUBLISHED = "record-published"
    FLUSHED = "flushed"
    CHECKPOINT_WRITTEN = "checkpoint-written"


class PublishSteps:
    """Observer of each step; the one in production does nothing."""

    def about_to(self, step: PublishStep) -> None:
        """Observe that the step's effect is next."""

    def reached(self, step: PublishStep) -> None:
        """Observe that the step succeeded."""

    @contextmanager
    def taking(self, step: PublishStep) -> Iterator[None]:
        """Observe a step around its effect."""
        self.about_to(step)
        yield
        self.reached(step)


class CheckpointStore(Protocol):
    """Durable place of one checkpoint."""

    def read(self) -> Checkpoint | None:
        """Return the checkpoint that was written last, or None if none ever was.

        Raises:
            InvalidInputError: the checkpoint is damaged.
            TemporaryError: the checkpoint cannot be read.
        """

    def write(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint durably, also against a crash of the machine; a failure leaves the last one.

        Raises:
            TemporaryError: the checkpoint cannot be written.
        """


class TopicTails(Protocol):
    """Reader of the ends of topics; a partition of a partitioned topic is read by its own name."""

    def last_position(self, topic: TopicName) -> Position:
        """Return the position of the topic's last entry; of an empty topic the entry -1 of its ledger.

        Raises:
            TemporaryError: no broker can be queried now.
        """

    def read_back(self, topic: TopicName, start: Position | None, producer_name: str) -> Tail:
        """Read the producer's records back from the entry ``start`` on, inclusively; None is the topic's beginning.

        Raises:
            TemporaryError: not everything could be read.
        """


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Open file with its size when it was opened; later bytes belong to another run."""

    file: BinaryIO
    size: int


@dataclass(slots=True)
class FilePublisher:
    """One run of a file's publisher."""

    source: SourceFile
    request: PublishRequest
    producers: SequencedProducers
    tails: TopicTails
    checkpoints: CheckpointStore
    clock: Clock
    stop: StopSignal
    _: KW_ONLY
    report: ReportWork = lambda doing, done, total: None
    steps: PublishSteps = field(default_factory=PublishSteps)
    _rolling: RollingHash = field(default_factory=RollingHash)
    _points: list[StoredPoint] = field(default_factory=list)
    _points_before: list[StoredPoint] = field(default_factory=list)
    _resume: list[ResumePoint] = field(default_factory=list)
    _stored: list[int] = field(default_factory=list)
    """Last record of each partition that is known to be stored."""
    _written: Checkpoint = field(init=False)
    _records: int = 0
    _resent: list[int] = field(default_factory=list)

    def run(self) -> FilePublishResult:
        """Publish the records that are not published yet.

        Raises:
            InvalidInputError: a record is malformed; those before it are published, and the checkpoint covers them.
            ConflictError: the file, topic or number of partitions differs; deduplication is not in effect; the
                name is in use, or has published something where it must not.
            TemporaryError: brokers cannot be reached, or one forgot the name; the same call continues later.
        """
        try:
            return self._run()
        except ProducerStateLostError as error:
            raise TemporaryError(f"{error}. A repeated command reads the topic back and compares") from error

    def _run(self) -> FilePublishResult:
        request = self.request
        with self.steps.taking(PublishStep.CHECKPOINT_READ):
            checkpoint = self.checkpoints.read()
        partitions = None
        if checkpoint is not None:
            self._check_checkpoint(checkpoint)
            self._rolling = verified(
                self.source.file,
                self.source.size,
                checkpoint.marks,
                lambda done, total: self.report("comparing the published part, bytes", done, total),
            )
            self._records = checkpoint.records
            partitions = len(checkpoint.partitions) if checkpoint.is_partitioned else 0
        with self._opened(partitions) as publisher:
            self._resume_points(publisher, checkpoint)
            reader = self._reader(self._rolling.feed)
            start = reader.after(self._rolling.end)
            with self.steps.taking(PublishStep.FILE_COMPARED):
                self._compare(publisher, start)
            if request.is_dry_run:
                return self._dry_run(publisher, reader, start)
            if checkpoint is None:
                self._write_checkpoint(self._checkpoint_here(publisher))
            else:
                self._written = checkpoint
            if start < self.source.size:
                self._resend_last(publisher)
            self._publish(publisher, reader, start)
            # A stopped run may have resent records that it has not reached again.
            duplicates = publisher.counts.total() - publisher.counts[Outcome.STORED]
            duplicates -= sum(offset >= self._rolling.end for offset in self._resent)
            return self._published(reader, publisher.counts[Outcome.STORED], duplicates)

    # --- before the first record -----------------------------------------------------------------------------------

    def _check_checkpoint(self, checkpoint: Checkpoint) -> None:
        request = self.request
        if request.is_fresh:
            raise ConflictError(
                f"--fresh was given, and there is a checkpoint: {format_count(checkpoint.records, 'record')} of this "
                "file published as "
                f"{checkpoint.producer_name}; continue with --resume, or choose another producer name and --checkpoint"
            )
        check_same_job(checkpoint, str(request.topic), request.producer_name, request.record_format, request.hashing)

    def _resume_points(self, publisher: ExactlyOncePublisher, checkpoint: Checkpoint | None) -> None:
        """Find each partition's resume point, its last known point, and the point to keep until the sums cover that."""
        for index, topic in enumerate(publisher.topics):
            pushed = publisher.last_sequence_id_of(index)
            if self.request.is_fresh and pushed != NOTHING_PUBLISHED:
                self._refuse_used_name(topic, f"up to the sequence id {pushed}")
            point = None if checkpoint is None else checkpoint.partitions[index]
            is_needed, start = read_back_from(pushed, point)
            tail = None
            if is_needed:
                with self.steps.taking(PublishStep.TAIL_READ_BACK):
                    tail = self.tails.read_back(topic, start, self.request.producer_name)
                if self.request.is_fresh and tail.records:
                    last = tail.records[-1]
                    self._refuse_used_name(topic, f"most recently the sequence id {last.offset}, at {last.position}")
            found = resume_point(pushed, point, tail)
            publisher.know_stored(index, found.after)
            self._resume.append(found)
            self._stored.append(found.after)
            self._points_before.append(point if point is not None and point.is_sent else SENT_BEFORE)
            if found.after in found.stored:
                point = StoredPoint(found.after, found.stored[found.after].position)
            self._points.append(point or NOTHING_SENT)

    def _refuse_used_name(self, topic: TopicName, what: str) -> NoReturn:
        raise ConflictError(
            f"--fresh was given, and {self.request.producer_name} has published to {topic} before, {what}; choose "
            "another producer name, or continue with --resume"
        )

    def _compare(self, publisher: ExactlyOncePublisher, start: int) -> None:
        until = max(max(point.after, point.pushed) for point in self._resume)
        if until < start:
            return
        records = takewhile(lambda record: record.offset <= until, self._reader().records(start))
        work = LongWork("comparing the topic with the file, bytes", until, self.report, self.clock)
        routed = (self._routed(publisher, record, work) for record in records)
        try:
            check_against_file(self._resume, start, routed)
        except InvalidInputError as error:
            raise ConflictError(f"the file is not the one that was published: {error}") from error

    def _routed(self, publisher: ExactlyOncePublisher, record: FileRecord, work: LongWork) -> tuple[FileRecord, int]:
        work.has_done(record.offset)
        return record, publisher.partition_of(_message(record))

    # --- the records -----------------------------------------------------------------------------------------------

    def _publish(self, publisher: ExactlyOncePublisher, reader: RecordReader, start: int) -> None:
        pace = Pace(self.clock, self.request.records_per_second)
        flushed_at, flushed_records = self.clock.monotonic_seconds(), self._records
        try:
            for record in reader.records(start):
                self._publish_one(publisher, record, pace)
                if self.stop.is_set():
                    break
                is_time = self.clock.monotonic_seconds() - flushed_at >= FLUSH_SECONDS
                if is_time or self._records - flushed_records >= FLUSH_RECORDS:
                    self._flush(publisher)
                    flushed_at, flushed_records = self.clock.monotonic_seconds(), self._records
        except InvalidInputError:
            self._flush(publisher)
            raise
        self._flush(publisher)

    def _resend_last(self, publisher: ExactlyOncePublisher) -> None:
        """Resend the last stored record of each partition: brokers must refuse it as a duplicate."""
        messages = []
        for point in self._resume:
            if not point.is_last_remembered:
                continue
            self._resent.append(point.after)
            messages.append(_message(next(self._reader(is_complete=True).records(point.after))))
        for message in messages:
            with self.steps.taking(PublishStep.RECORD_RESENT):
                publisher.publish(message)
        publisher.flush()

    def _publish_one(self, publisher: ExactlyOncePublisher, record: FileRecord, pace: Pace) -> None:
        message = _message(record)
        index = publisher.partition_of(message)
        if record.offset > self._resume[index].after:
            if not self._points[index].is_sent:
                self._begin(publisher, index)
            self.steps.about_to(PublishStep.RECORD_PUBLISHED)
            publisher.publish(message)
            self.steps.reached(PublishStep.RECORD_PUBLISHED)
            pace.wait_after(1, self.stop)
        self._records += 1

    def _begin(self, publisher: ExactlyOncePublisher, index: int) -> None:
        """Record that the partition may hold records from now on, and behind which entry."""
        last = self.tails.last_position(publisher.topics[index])
        self._points[index] = StoredPoint(None, last)
        points = [*self._written.partitions]
        points[index] = self._points[index]
        self._write_checkpoint(replace(self._written, partitions=tuple(points)))

    def _flush(self, publisher: ExactlyOncePublisher) -> None:
        with self.steps.taking(PublishStep.FLUSHED):
            publisher.flush()
        self._write_checkpoint(self._checkpoint_here(publisher))
        self.report("publishing, bytes", self._rolling.end, self.source.size)

    def _checkpoint_here(self, publisher: ExactlyOncePublisher) -> Checkpoint:
        request = self.request
        # Records that were read back may be beyond the sums. With an older point, the next run merely reads more back,
        # and compares the bytes beyond the sums with the file.
        points = (
            point if point.offset is None or point.offset < self._rolling.end else before
            for point, before in zip(self._points, self._points_before, strict=True)
        )
        return Checkpoint(
            topic=str(request.topic),
            producer_name=request.producer_name,
            record_format=request.record_format,
            hashing=request.hashing,
            is_partitioned=publisher.partitions > 0,
            partitions=tuple(points),
            records=self._records,
            marks=self._rolling.marks(),
        )

    def _write_checkpoint(self, checkpoint: Checkpoint) -> None:
        with self.steps.taking(PublishStep.CHECKPOINT_WRITTEN):
            self.checkpoints.write(checkpoint)
        self._written = checkpoint

    def _confirmed(self, confirmation: Confirmation) -> None:
        """Record a confirmed batch; brokers must refuse a partition's first one if it was read back before."""
        index, last = confirmation.partition, confirmation.batch.last_sequence_id
        if confirmation.outcome is Outcome.STORED and last == self._resume[index].after:
            raise ConflictError(
                f"partition {index} has stored the record at byte {last} a second time, at {confirmation.position}: "
                "deduplication is not in effect there, although the broker reports it; publish nothing more"
            )
        self._stored[index] = last
        if confirmation.position is not None:
            self._points[index] = StoredPoint(last, confirmation.position)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _dry_run(self, publisher: ExactlyOncePublisher, reader: RecordReader, start: int) -> FilePublishResult:
        stored = 0
        for record in reader.records(start):
            stored += record.offset > self._resume[publisher.partition_of(_message(record))].after
            self._records += 1
            if self._records % _RECORDS_PER_REPORT == 0:
                self.report("reading, bytes", record.end, self.source.size)
            if self.stop.is_set():
                break
        return self._published(reader, stored, 0)

    def _published(self, reader: RecordReader, stored: int, duplicates: int) -> FilePublishResult:
        marks = self._rolling.marks()
        return FilePublishResult(
            records=self._records,
            stored_earlier=self._records - stored - duplicates,
            stored=stored,
            duplicates=duplicates,
            bytes=self._rolling.end,
            sha256=marks[-1].sha256 if marks else None,
            unfinished_at=reader.unfinished_at,
            is_stopped=self.stop.is_set() and reader.unfinished_at is None and self._rolling.end < self.source.size,
            partitions=[
                PublishedPartition(
                    None if last == NOTHING_PUBLISHED else last, point.position if point.offset == last else None
                )
                for last, point in zip(self._stored, self._points, strict=True)
            ],
        )

    # --- collaborators -----------------------------------------------------------------------------------------------

    def _opened(self, partitions: int | None) -> ExactlyOncePublisher:
        request = self.request
        with self.steps.taking(PublishStep.PRODUCERS_OPENED):
            return ExactlyOncePublisher(
                self.producers,
                self.clock,
                request.topic,
                producer_name=request.producer_name,
                limits=request.limits,
                hashing=request.hashing,
                partitions=partitions,
                on_confirmed=self._confirmed,
            )

    def _reader(self, feed: Callable[[bytes], None] = lambda data: None, *, is_complete: bool = False) -> RecordReader:
        source, request = self.source, self.request
        is_complete = is_complete or request.is_complete
        return RecordReader(source.file, request.record_format, source.size, is_complete=is_complete, feed=feed)


def _message(record: FileRecord) -> OutgoingMessage:
    return OutgoingMessage(record.payload, record.offset, record.key, record.properties, record.event_time_ms)
