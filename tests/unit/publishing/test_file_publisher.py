"""Files published to brokers that judge duplicates as Pulsar's do, by a process that dies anywhere."""

import hashlib
import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.publishing import file_publisher as module
from pulsar_sidecar.features.publishing.file_publisher import FilePublisher, PublishStep, PublishSteps, SourceFile
from pulsar_sidecar.features.publishing.messages import BatchLimits
from pulsar_sidecar.features.publishing.records import RecordFormat, RecordReader
from pulsar_sidecar.features.publishing.requests import FilePublishResult, PublishedPartition, PublishRequest
from pulsar_sidecar.features.publishing.resume import Tail
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.deduplicating_broker import FakeDeduplicatingBrokers, StoredEntry
from tests.fakes.published_files import FakeCheckpoints, FakeTails

TOPIC = parse_topic_name("public/default/records")
PARTITIONS = [TOPIC.partition(index) for index in range(3)]
REQUEST = PublishRequest(TOPIC, "loader", limits=BatchLimits(messages=3))
JSON_REQUEST = replace(REQUEST, record_format=RecordFormat.JSON_LINES)
OCCURRENCES = (1, 2, 3, 7, 12, 40)
POINTS = [(step, when) for step in PublishStep for when in ("before", "after")]


Deleted = dict[TopicName, Counter[int]]


class Killed(BaseException):
    """The process is gone."""


@dataclass
class Calls(PublishSteps):
    """Calls a function after a step, or before it."""

    step: PublishStep
    call: Callable[[], object]
    when: str = "after"

    def about_to(self, step: PublishStep) -> None:
        if (step, self.when) == (self.step, "before"):
            self.call()

    def reached(self, step: PublishStep) -> None:
        if (step, self.when) == (self.step, "after"):
            self.call()


class KillsAt(Calls):
    """Ends the process at a point, at its nth time."""

    def __init__(self, point: tuple[PublishStep, str], occurrence: int = 1) -> None:
        super().__init__(point[0], self._pass, point[1])
        self.left = occurrence

    def _pass(self) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


class PassingTime(FakeClock):
    """While a caller waits, bookies store what is being written."""

    def __init__(self, brokers: FakeDeduplicatingBrokers) -> None:
        super().__init__()
        self.brokers = brokers

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        for topic in self.brokers.topics.values():
            topic.write(1)
        return super().wait_seconds(seconds, stop)


@dataclass
class Job:
    """A file, its topic and its checkpoint, over several runs."""

    data: bytes
    request: PublishRequest = REQUEST
    brokers: FakeDeduplicatingBrokers = field(default_factory=FakeDeduplicatingBrokers)
    checkpoints: FakeCheckpoints = field(default_factory=FakeCheckpoints)
    stop: threading.Event = field(default_factory=threading.Event)
    reports: list[tuple[str, int, int]] = field(default_factory=list)
    is_cut_short: bool = False

    def __post_init__(self) -> None:
        self.clock = PassingTime(self.brokers)
        self.tails = FakeTails(self.brokers)

    def run(self, steps: PublishSteps | None = None, **changes: Any) -> FilePublishResult:
        publisher = FilePublisher(
            SourceFile(BytesIO(self.data), len(self.data)),
            replace(self.request, **changes),
            self.brokers,
            self.tails,
            self.checkpoints,
            self.clock,
            self.stop,
            report=lambda *progress: self.reports.append(progress),
            steps=steps or PublishSteps(),
        )
        try:
            return publisher.run()
        except Killed:
            for topic in self.brokers.topics.values():
                topic.disconnect("the connection broke")
            raise

    def forget(self) -> None:
        """Let brokers forget the producer."""
        for topic in self.brokers.topics.values():
            topic.forget(REQUEST.producer_name)

    def partitioned(self) -> "Job":
        self.brokers.partition_counts[TOPIC] = len(PARTITIONS)
        return self

    @property
    def stored(self) -> list[list[int]]:
        """The sequence ids of each partition."""
        topics = PARTITIONS if self.brokers.partition_counts else [TOPIC]
        return [[one for one in self.brokers.topic(topic).sequence_ids if one is not None] for topic in topics]


@pytest.fixture(autouse=True)
def _flush_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FLUSH_RECORDS", 7)


def lines(count: int, first: int = 0) -> bytes:
    return b"".join(b"record %d\n" % number for number in range(first, first + count))


def json_lines(count: int) -> bytes:
    documents = ({"payload": f"record {number}", "key": f"key {number % 5}"} for number in range(count))
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def offsets(data: bytes) -> list[int]:
    return [0, *(at + 1 for at, byte in enumerate(data[:-1]) if byte == ord("\n"))] if data else []


def check_once_in_order(job: Job) -> None:
    for stored in job.stored:
        assert stored == sorted(set(stored)), "in order, and none twice"
    assert sorted(one for stored in job.stored for one in stored) == offsets(job.data), "none is missing"
    assert not edited_since(job), "what is stored is what the file holds"


def edited_since(job: Job) -> list[int]:
    """The records that the topic holds and the file does not, or no longer does."""
    reader = RecordReader(BytesIO(job.data), job.request.record_format, len(job.data), is_complete=True)
    payloads = {record.offset: record.payload for record in reader.records()}
    return [
        message.sequence_id
        for topic in job.brokers.topics.values()
        for entry in topic.entries
        for message in entry.messages
        if message.sequence_id is not None and payloads.get(message.sequence_id) != message.payload
    ]


def check_sums(published: FilePublishResult) -> None:
    assert published.records == published.stored_earlier + published.stored + published.duplicates
    assert min(published.stored_earlier, published.stored, published.duplicates) >= 0


# --- plain runs ----------------------------------------------------------------------------------------------------


def test_a_file_is_published_by_byte_offsets() -> None:
    job = Job(b"a\nbcd\n\nend\n")
    published = job.run()
    assert job.brokers.topic(TOPIC).payloads == [b"a", b"bcd", b"", b"end"]
    assert job.stored == [[0, 2, 6, 7]]
    last = job.brokers.topic(TOPIC).entries[-1].position
    assert published == FilePublishResult(
        records=4,
        stored_earlier=0,
        stored=4,
        duplicates=0,
        bytes=11,
        sha256=hashlib.sha256(job.data).hexdigest(),
        unfinished_at=None,
        is_stopped=False,
        partitions=[PublishedPartition(7, last)],
    )
    assert job.reports[-1] == ("publishing, bytes", 11, 11)


def test_a_growing_file_is_published_from_its_former_end() -> None:
    job = Job(lines(5) + b"half of a li")
    published = job.run()
    assert (published.records, published.unfinished_at) == (5, len(lines(5)))
    job.data = lines(5) + b"half of a line\n" + lines(3)
    assert job.run().stored == 4
    assert job.brokers.topic(TOPIC).payloads == job.data.splitlines()
    job.data += b"the end"
    assert job.run(is_complete=True).stored == 1
    job.data += b"\n"
    assert job.run().stored == 0
    job.data += b"more\n"
    assert job.run().stored == 1
    assert job.brokers.topic(TOPIC).payloads == job.data.splitlines()


def test_an_empty_file() -> None:
    published = Job(b"").run()
    assert (published.records, published.sha256, published.partitions) == (0, None, [PublishedPartition(None, None)])


def test_a_dry_run_changes_nothing() -> None:
    job = Job(json_lines(40), JSON_REQUEST).partitioned()
    published = job.run(is_dry_run=True)
    assert (published.records, published.stored, published.bytes) == (40, 40, len(job.data))
    assert not job.brokers.sent
    assert job.checkpoints.text is None
    with pytest.raises(Killed):
        job.run(KillsAt((PublishStep.CHECKPOINT_WRITTEN, "before"), 6))
    sent, text = len(job.brokers.sent), job.checkpoints.text
    published = job.run(is_dry_run=True)
    check_sums(published)
    assert published.stored_earlier
    assert (len(job.brokers.sent), job.checkpoints.text) == (sent, text)
    job.run()
    check_once_in_order(job)


def test_records_are_published_at_the_requested_rate() -> None:
    job = Job(lines(50))
    began = job.clock.monotonic_seconds()
    job.run(records_per_second=10.0)
    assert job.clock.monotonic_seconds() - began == pytest.approx(5, abs=0.2)
    assert job.checkpoints.written >= 5, "a slow run writes its checkpoint by the clock"


def test_a_signal_ends_a_run_between_two_records() -> None:
    job = Job(lines(20))
    stops = Calls(PublishStep.RECORD_PUBLISHED, lambda: len(job.brokers.sent) == 2 and job.stop.set())
    published = job.run(stops)
    assert published.is_stopped
    assert published.records == len(job.stored[0]) < 20
    job.stop.clear()
    published = job.run()
    assert (published.duplicates, published.records) == (1, 20)
    check_once_in_order(job)


def test_the_summary_omits_records_that_are_only_pushed() -> None:
    job = Job(lines(30))
    job.brokers.hold = True
    with pytest.raises(Killed):
        job.run(KillsAt((PublishStep.RECORD_PUBLISHED, "after"), 20))
    last = job.stored[0][-1]
    assert job.run(is_dry_run=True).partitions[0].last_sequence_id == last < job.brokers.topic(TOPIC).pushed["loader"]
    job.stop.set()
    assert last < (job.run().partitions[0].last_sequence_id or 0) <= job.stored[0][-1]
    job.stop.clear()
    assert job.run().partitions[0].last_sequence_id == offsets(job.data)[-1]


def test_a_signal_ends_the_wait_of_a_slow_run() -> None:
    job = Job(lines(20))
    began = job.clock.monotonic_seconds()
    published = job.run(Calls(PublishStep.RECORD_PUBLISHED, job.stop.set), records_per_second=0.001)
    assert job.clock.monotonic_seconds() - began < 1000
    assert (published.records, published.is_stopped, job.stored) == (1, True, [[0]]), "what was added is stored"


@pytest.mark.parametrize("tail", [b"", b"half of a li"])
def test_a_signal_at_the_files_end_ends_nothing(tail: bytes) -> None:
    job = Job(lines(20) + tail)
    published = job.run(Calls(PublishStep.CHECKPOINT_WRITTEN, lambda: len(job.stored[0]) == 20 and job.stop.set()))
    assert job.stop.is_set()
    assert (published.records, published.is_stopped) == (20, False)


def test_counts_of_a_run_stopped_among_stored_records() -> None:
    job = half_published(json_lines(40), JSON_REQUEST, is_partitioned=True)
    job.checkpoints.text = None
    job.stop.set()
    published = job.run()
    check_sums(published)
    assert (published.records, published.stored, published.stored_earlier + published.duplicates) == (1, 0, 1)
    job.stop.clear()
    check_sums(job.run())
    check_once_in_order(job)


def test_records_before_a_malformed_one_are_published() -> None:
    good = json_lines(4)
    job = Job(good + b"{]\n" + good, JSON_REQUEST)
    with pytest.raises(InvalidInputError, match=f"byte {len(good)} "):
        job.run()
    assert len(job.stored[0]) == 4
    job.data = good + b'{"payload": "x"}\n' + good
    published = job.run()
    assert (published.stored_earlier, published.duplicates, len(job.stored[0])) == (3, 1, 9)


# --- kills ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", [False, True], ids=["stored-at-once", "stored-later"])
@pytest.mark.parametrize(("step", "when"), POINTS, ids=lambda value: getattr(value, "value", value))
def test_killed_before_and_after_every_step(step: PublishStep, when: str, *, hold: bool) -> None:
    """First with a checkpoint that is too old, so that every step comes to pass."""
    for occurrence in OCCURRENCES:
        job = Job(json_lines(40), JSON_REQUEST).partitioned()
        job.brokers.hold = hold
        with pytest.raises(Killed):
            job.run(KillsAt((PublishStep.FLUSHED, "after"), 3))
        steps = KillsAt((step, when), occurrence)
        try:
            job.run(steps)
            break
        except Killed:
            published = job.run()
        check_once_in_order(job)
        check_sums(published)
    assert occurrence > 1, "the step came to pass"


@given(st.data())
def test_each_record_is_stored_once_through_all_failures(choice: st.DataObject) -> None:
    """Kills, dying brokers, failing bookies, lost answers, forgetful brokers and lost checkpoints, in any order."""
    job = Job(json_lines(choice.draw(st.integers(1, 60))), JSON_REQUEST)
    if choice.draw(st.booleans(), "partitioned"):
        job.partitioned()
    for _ in range(choice.draw(st.integers(0, 5), "lives")):
        job.brokers.hold = choice.draw(st.booleans(), "hold")
        job.brokers.lost_answers = choice.draw(st.integers(0, 2), "lost answers")
        steps = KillsAt(choice.draw(st.sampled_from(POINTS), "point"), choice.draw(st.integers(1, 60), "occurrence"))
        job.request = replace(job.request, limits=BatchLimits(messages=choice.draw(st.integers(1, 9), "batch")))
        if refusal(job, steps) is not None:
            break
        happenings(job, choice)
    job.brokers.lost_answers = 0
    if finished_unless_unknown(job):
        check_once_in_order(job)


@given(st.data())
def test_an_edit_of_the_published_part_is_always_refused(choice: st.DataObject) -> None:
    """The edit keeps the length, so that only a comparison shows it; some runs end before they have read much."""
    job = Job(json_lines(choice.draw(st.integers(1, 40))), JSON_REQUEST)
    if choice.draw(st.booleans(), "partitioned"):
        job.partitioned()
    for _ in range(choice.draw(st.integers(1, 4), "lives")):
        steps = KillsAt(choice.draw(st.sampled_from(POINTS), "point"), choice.draw(st.integers(1, 40), "occurrence"))
        if choice.draw(st.booleans(), "stopped"):
            job.stop.set()
        reason = refusal(job, steps)
        job.stop.clear()
        if reason is not None:
            return  # A partition that shows nothing, as above.
        happenings(job, choice)
    for topic in job.brokers.topics.values():
        topic.write(len(topic.writing))
    if stored := sorted(itertools.chain(*job.stored)):
        at = job.data.index(b"record", choice.draw(st.sampled_from(stored), "edited"))
        job.data = job.data[:at] + b"edited" + job.data[at + 6 :]
        assert refusal_in_the_end(job) is not None


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_read_back_records_are_compared_until_the_checkpoint_covers_them(*, has_checkpoint: bool) -> None:
    """A run reads back what another had stored, and ends before it has come so far; then the file is edited."""
    job = half_published(lines(40))
    if not has_checkpoint:
        job.checkpoints.text = None
    before = job.checkpoints.text
    job.stop.set()
    assert job.run().is_stopped
    assert job.checkpoints.text != before
    job.stop.clear()
    stored, data = job.stored[0], job.data
    job.data = data.replace(b"record %d\n" % (len(stored) - 2), b"edited %d\n" % (len(stored) - 2))
    refused(job, "is not the one that the topic holds")
    job.data = data
    job.forget()
    job.run()
    check_once_in_order(job)


def finished_unless_unknown(job: Job) -> bool:
    """A partition that shows nothing may have been trimmed: it is refused, and an empty topic is begun again."""
    reason = refusal_in_the_end(job)
    if reason is not None:
        assert [] in job.stored, reason
        assert re.search("delete the checkpoint|shows nothing of this producer", reason), reason
        if any(job.stored):
            return False
        job.checkpoints.text = None
        assert refusal_in_the_end(job) is None
    return True


def refusal_in_the_end(job: Job) -> str | None:
    for _ in range(4):
        reason = refusal(job, PublishSteps())
        if reason is not None or not job.is_cut_short:
            return reason
    raise AssertionError("it ends in the end")


def happenings(job: Job, choice: st.DataObject) -> None:
    match choice.draw(st.sampled_from(["nothing", "dies", "bookies fail", "forgets", "checkpoint lost"])):
        case "dies":
            job.brokers.die(choice.draw(st.integers(0, 3), "written"))
        case "bookies fail":
            for topic in job.brokers.topics.values():
                topic.fail_writes()
        case "forgets":
            for topic in job.brokers.topics.values():
                topic.write(len(topic.writing))
            job.forget()
        case "checkpoint lost":
            for topic in job.brokers.topics.values():
                topic.write(len(topic.writing))
            job.checkpoints.text = None
        case _:
            pass


@given(st.data())
def test_no_silent_loss_or_duplicate_after_trims_and_recreations(
    choice: st.DataObject,
) -> None:
    """Each record at most once over the topic's whole life, and a run that ends well has published all of them."""
    job = Job(json_lines(choice.draw(st.integers(1, 40))), JSON_REQUEST)
    if choice.draw(st.booleans(), "partitioned"):
        job.partitioned()
    ever: Counter[int] = Counter()
    deleted: Deleted = {}
    is_gone = is_lost = False
    for _ in range(choice.draw(st.integers(1, 5), "lives")):
        job.brokers.lost_answers = choice.draw(st.integers(0, 2), "lost answers")
        job.brokers.step = changing_meanwhile(job, choice, ever, deleted)
        steps = KillsAt(choice.draw(st.sampled_from(POINTS), "point"), choice.draw(st.integers(1, 60), "occurrence"))
        reason = refusal(job, steps)
        is_gone |= any(records.total() for records in deleted.values())
        if is_lost and is_gone:
            return  # A first run looks the same: the limit that the documentation names.
        if reason is not None:
            assert re.search("trimmed|nothing shows|shows nothing", reason), reason
            return
        if not job.is_cut_short:
            check_all_once(job, ever, deleted)
        for happening in choice.draw(st.lists(st.sampled_from(["dies", "forgets", "trim", "checkpoint"]))):
            is_lost |= happening == "checkpoint"
            is_gone |= happening == "trim"
            change(job, happening, ever, deleted)
        if is_lost and is_gone:
            return  # A first run looks the same: the limit that the documentation names.
    job.brokers.lost_answers, job.brokers.step = 0, lambda happening: None
    if refusal_in_the_end(job) is None:
        check_all_once(job, ever, deleted)


def refusal(job: Job, steps: PublishSteps) -> str | None:
    job.is_cut_short = False
    try:
        check_sums(job.run(steps))
    except (Killed, TemporaryError):
        job.is_cut_short = True
    except ConflictError as error:
        return str(error)
    return None


def changing_meanwhile(job: Job, choice: st.DataObject, ever: Counter[int], deleted: Deleted) -> Callable[[str], None]:
    """The broker forgets, or the topic is made again, at one moment of the run."""
    what = choice.draw(st.sampled_from(["nothing", "forgets", "made again"]), "meanwhile")
    left = itertools.count(choice.draw(st.integers(0, 40), "after so many steps"), -1)

    def step(happening: str) -> None:
        # A producer that sends over a connection that is gone notices; that is when a broker forgets, or a topic goes.
        if next(left) == 0 and not happening.startswith("send"):
            for topic in job.brokers.topics.values():
                topic.disconnect("it moves")
            change(job, what, ever, deleted)

    return step


def change(job: Job, happening: str, ever: Counter[int], deleted: Deleted) -> None:
    topics = [*job.brokers.topics.values()]
    match happening:
        case "dies":
            job.brokers.die()
        case "checkpoint":
            job.checkpoints.text = None
        case "forgets":
            job.forget()
        case "trim":
            for topic in topics:
                ever.update(one for one in topic.sequence_ids if one is not None)
                topic.trim()
        case "made again":
            for name, topic in job.brokers.topics.items():
                deleted.setdefault(name, Counter()).update(one for one in topic.sequence_ids if one is not None)
                topic.make_again()
        case _:
            pass


def check_all_once(job: Job, trimmed: Counter[int], deleted: Mapping[TopicName, Counter[int]]) -> None:
    """Check that each record was stored once, counting trimmed and deleted ones, and none in a topic made again."""
    found = trimmed + Counter(one for stored in job.stored for one in stored)
    for name, records in deleted.items():
        found += records
        assert not records or not job.brokers.topic(name).entries, "nothing goes to the topic that was made again"
    assert found == Counter(offsets(job.data)), "each once, and none is missing"


def test_pushed_records_may_fail_after_the_broker_answered() -> None:
    """Pushed falls back between the response and the record that is sent again: no gap may come of it."""
    job = Job(lines(30))
    job.brokers.hold = True
    with pytest.raises(Killed):
        job.run(KillsAt((PublishStep.RECORD_PUBLISHED, "after"), 20))
    assert job.brokers.topic(TOPIC).writing
    check_sums(job.run(Calls(PublishStep.FILE_COMPARED, job.brokers.topic(TOPIC).fail_writes)))
    check_once_in_order(job)


# --- refusals ------------------------------------------------------------------------------------------------------


def half_published(data: bytes, request: PublishRequest = REQUEST, *, is_partitioned: bool = False) -> Job:
    """A few records beyond the last checkpoint."""
    job = Job(data, request)
    if is_partitioned:
        job.partitioned()
    with pytest.raises(Killed):
        job.run(KillsAt((PublishStep.CHECKPOINT_WRITTEN, "before"), 5))
    return job


def refused(job: Job, reason: str, kind: type[SidecarError] = ConflictError, **changes: Any) -> None:
    sent = len(job.brokers.sent)
    with pytest.raises(kind, match=reason):
        job.run(**changes)
    assert len(job.brokers.sent) == sent, "nothing was sent"


def test_another_file_is_refused() -> None:
    data = lines(40)
    for changed, reason in (
        (b"R" + data[1:], "changed between the bytes 0"),
        (data[:30], "30 bytes long"),
        (data[:-200].replace(b"record 17", b"record ==") + data[-200:], "the record at byte 160 is not the one"),
        (data[:180], "no record of the file"),
    ):
        job = half_published(data)
        job.data = changed
        refused(job, reason)


def test_another_file_is_refused_without_a_checkpoint() -> None:
    job = half_published(json_lines(40), JSON_REQUEST)
    job.checkpoints.text = None
    job.data = b"{" + json_lines(40)
    refused(job, "not the one that was published: the record at byte 0")
    job = half_published(lines(40))
    job.checkpoints.text = None
    job.data = lines(40, first=100)
    refused(job, "is not the one that the topic holds|no record of the file")
    job.data = lines(40)
    check_sums(job.run())
    check_once_in_order(job)


def test_another_job_and_another_number_of_partitions() -> None:
    job = half_published(lines(40))
    refused(job, "topic", topic=parse_topic_name("public/default/other"))
    refused(job, "producer name", producer_name="other")
    refused(job, "format", record_format=RecordFormat.LENGTH_PREFIXED)
    refused(job, "--fresh", is_fresh=True)
    job.partitioned()
    refused(job, "3 partitions and had 0")


def test_a_fresh_name() -> None:
    job = Job(lines(9))
    job.run(is_fresh=True)
    check_once_in_order(job)
    job.checkpoints.text = None
    before = "has published to persistent://public/default/records before"
    refused(job, f"{before}, up to the sequence id 72", is_fresh=True)
    job.forget()
    refused(job, f"{before}, most recently the sequence id 72, at 1:3; choose another", is_fresh=True)


def test_a_topic_without_deduplication() -> None:
    job = Job(lines(9))
    job.brokers.topic(TOPIC).status = "Disabled"
    refused(job, "Disabled")
    assert job.checkpoints.text is None


def test_deduplication_that_is_off_in_fact_is_noticed_at_the_first_record() -> None:
    job = half_published(lines(40))
    job.brokers.topic(TOPIC).persisted.clear()
    before = len(job.stored[0])
    ends = Calls(PublishStep.RECORD_RESENT, lambda: setattr(job.brokers.topic(TOPIC), "status", "Disabled"), "before")
    with pytest.raises(ConflictError, match="a second time"):
        job.run(ends)
    assert len(job.stored[0]) == before + 1


@pytest.mark.parametrize("published", [b"", lines(20)])
def test_a_forgotten_name_and_a_lost_answer_before_the_first_receipt(published: bytes) -> None:
    """The next run reads the topic back, so that nothing comes twice."""
    job = Job(published)
    job.run()
    job.data = lines(60)
    sent = len(job.brokers.sent)
    job.brokers.lost_answers = 1

    def step(happening: str) -> None:
        if len(job.brokers.sent) == sent + 1:
            job.forget()

    job.brokers.step = step
    with pytest.raises(TemporaryError, match="A repeated command reads the topic back"):
        job.run()
    assert len(job.brokers.sent) == sent + 1
    job.brokers.step = lambda happening: None
    check_sums(job.run())
    check_once_in_order(job)


@pytest.mark.parametrize("published", [b"", lines(20)])
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_a_topic_deleted_during_a_run(published: bytes, batches: int) -> None:
    job = Job(published)
    job.run()
    job.data = lines(60)
    last = len(job.brokers.sent) + batches
    made: list[str] = []

    def step(happening: str) -> None:
        if len(job.brokers.sent) == last and not made:
            made.append(happening)
            job.brokers.topic(TOPIC).make_again()

    job.brokers.step = step
    with pytest.raises(TemporaryError, match="deleted and created again"):
        job.run()
    refused(job, "trimmed, or the topic was deleted and created again")


def test_a_completely_trimmed_partition_is_not_published_again() -> None:
    job = Job(json_lines(40), JSON_REQUEST).partitioned()
    job.run()
    job.checkpoints.text = None
    job.forget()
    job.brokers.topic(PARTITIONS[1]).trim()
    refused(job, "partition 1 shows nothing of this producer")


@pytest.mark.parametrize("others", [False, True])
def test_killed_in_the_first_second_and_everything_trimmed_and_forgotten(*, others: bool) -> None:
    job = Job(lines(40))
    with pytest.raises(Killed):
        job.run(KillsAt((PublishStep.FLUSHED, "after"), 1))
    job.forget()
    topic = job.brokers.topic(TOPIC)
    topic.trim()
    if others:
        topic.entries.append(StoredEntry(topic.next_position(), "other", 0, 0, ()))
    refused(job, "no longer holds the entry 1:-1 .* if it was nothing, delete the checkpoint")


def test_an_unused_partition_may_be_trimmed_and_recreated() -> None:
    document = {"key": "one key", "payload": "x"}
    job = Job(b"".join(json.dumps(document).encode() + b"\n" for _ in range(40)), JSON_REQUEST).partitioned()
    job.run()
    for each in PARTITIONS:
        topic = job.brokers.topic(each)
        if not topic.entries:
            topic.entries.append(StoredEntry(topic.next_position(), "other", 0, 0, ()))
            topic.make_again()
    job.data += json_lines(20)
    check_sums(job.run())
    check_once_in_order(job)


def test_every_resumed_run_sends_the_last_record_again_alone() -> None:
    job = Job(json_lines(40), JSON_REQUEST).partitioned()
    job.run()
    lasts = {stored[-1] for stored in job.stored}
    job.data += json_lines(5)
    job.brokers.sent.clear()
    published = job.run()
    assert {batch.first_sequence_id for _, batch in job.brokers.sent[:3]} == lasts
    assert all(len(batch.messages) == 1 for _, batch in job.brokers.sent[:3])
    assert (published.stored_earlier, published.duplicates, published.stored) == (37, 3, 5)


def test_a_changed_route_of_keys_is_refused() -> None:
    job = Job(json_lines(40), JSON_REQUEST).partitioned()
    job.run()
    job.data += json_lines(5)
    job.forget()
    refused(job, "of hashing scheme JavaStringHash", hashing=HashingScheme.MURMUR3_32_HASH)
    job.checkpoints.text = None
    refused(
        job,
        "lacks the record at byte 40 .* the hashing scheme or the number of partitions has changed",
        hashing=HashingScheme.MURMUR3_32_HASH,
    )


class SeesNothing(FakeTails):
    def read_back(self, topic: TopicName, start: Position | None, producer_name: str) -> Tail:
        return Tail((), None)


@pytest.mark.parametrize("reads_back", [True, False])
def test_only_reading_back_helps_where_the_broker_forgot_and_the_checkpoint_is_lost(*, reads_back: bool) -> None:
    job = half_published(lines(40))
    before = len(job.stored[0])
    job.forget()
    job.checkpoints.text = None
    job.tails = job.tails if reads_back else SeesNothing(job.brokers)
    job.run()
    assert len(job.stored[0]) == (40 if reads_back else before + 40)
