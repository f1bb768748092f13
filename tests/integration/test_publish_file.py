"""``pulsar-sidecar publish`` on real brokers: killed at every step, each record is stored once and in order."""

import hashlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pulsar_sidecar.adapters.local_files.publishing_files import CheckpointFile, checkpoint_path, source_file
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.topic_tails import BrokerTopicTails
from pulsar_sidecar.features.publishing.file_publisher import FilePublisher
from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.requests import FilePublishResult, PublishRequest
from pulsar_sidecar.features.publishing.resume import Tail
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

from tests.cluster.exactly_once import CLOCK, LosingAnswers, Setup, exactly_once_setup
from tests.cluster.failing_publisher import KILLED, LATE, POINTS, Ended, publish_until
from tests.cluster.patience import PATIENCE_SECONDS, until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import CommandAnswer, run_command

NAME = "loader-1"
PARTITIONS = 3
RECORDS = 40_000
BEHIND_A_CHECKPOINT = (LATE, 400)
"""A kill that leaves records behind the last checkpoint: a batch of at least one partition was sent."""


@pytest.fixture(scope="module")
def setup(cluster: ClusterUnderTest) -> Iterator[Setup]:
    with exactly_once_setup(cluster) as one:
        yield one


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fault-rounds"))


@dataclass(frozen=True, slots=True)
class Job:
    """A file of lines of JSON, and where it goes."""

    setup: Setup
    file: Path
    topic: TopicName
    count: int

    @property
    def arguments(self) -> list[str]:
        addresses = self.setup.cluster.addresses
        return [
            "--output", "json", "publish", str(self.file), str(self.topic), "--producer-name", NAME,
            "--format", "json-lines", "--batch-size", "100",
            "--broker-service-url", addresses.broker_service_url,
            "--web-service-url", ",".join(addresses.web_service_urls),
        ]  # fmt: skip

    def published(self, *more: str) -> dict[str, Any]:
        answer = run_command(*self.arguments, *more)
        assert answer.exit_code == 0, answer.stderr
        assert "Traceback" not in answer.stderr
        return answer.json

    def refused(self, reason: str, *more: str) -> CommandAnswer:
        answer = run_command(*self.arguments, *more)
        assert (answer.exit_code, answer.stdout) == (1, ""), answer
        assert reason in answer.stderr
        return answer

    def killed(self, point: str, occurrence: int, *more: str) -> Ended:
        ended = publish_until(point, occurrence, [*self.arguments, *more])
        assert ended.code == KILLED, f"not killed at {point}, {occurrence}: {ended}"
        return ended

    def stored(self) -> list[list[int]]:
        partitions = self.setup.producers.partitions(self.topic)
        names = [self.topic.partition(index) for index in range(partitions)] or [self.topic]
        return [[int(message.data().split()[1]) for message in self.setup.stored(name)] for name in names]

    def check_each_once_in_order(self) -> None:
        found = self.stored()
        for numbers in found:
            assert numbers == sorted(set(numbers)), "in order, and none twice"
        assert sorted(number for numbers in found for number in numbers) == list(range(self.count)), "none is missing"


def job(setup: Setup, directory: Path, count: int, partitions: int = PARTITIONS) -> Job:
    file = directory / "events.jsonl"
    file.write_bytes(lines(range(count)))
    return Job(setup, file, setup.topic(partitions), count)


def lines(numbers: Sequence[int], keys: int = 50) -> bytes:
    documents = (
        {"payload": f"record {number}", "key": f"key {number % keys}", "eventTime": number + 1} for number in numbers
    )
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def test_killed_before_and_after_every_step(setup: Setup, tmp_path: Path, rounds: int) -> None:
    for number in range(rounds):
        directory = tmp_path / str(number)
        directory.mkdir()
        one = job(setup, directory, RECORDS)
        points = list(POINTS)
        random.Random(number).shuffle(points)
        for point in points:
            if point.endswith((":record-resent", ":tail-read-back")):
                one.killed(*BEHIND_A_CHECKPOINT)
            # What happens once a second is brought about by a rate that makes the file last.
            nth = 150 if point.endswith(":record-published") else 1
            one.killed(point, nth, "--rate", "1000")
        summary = one.published()
        assert summary["records"] == summary["storedEarlier"] + summary["stored"] + summary["duplicatesRefused"]
        assert (summary["records"], summary["bytes"]) == (RECORDS, one.file.stat().st_size)
        assert summary["sha256"] == hashlib.sha256(one.file.read_bytes()).hexdigest()
        one.check_each_once_in_order()
        again = one.published()
        assert (again["stored"], again["duplicatesRefused"], again["storedEarlier"]) == (0, 0, RECORDS)


def test_killed_at_any_moment_while_brokers_die(setup: Setup, tmp_path: Path, rounds: int) -> None:
    one = job(setup, tmp_path, 2 * RECORDS)
    rng = random.Random(rounds)
    command = [sys.executable, "-m", "pulsar_sidecar", *one.arguments, "--batch-size", "1000", "--rate", "8000"]
    for number in range(2 * rounds):
        owner = setup.owner(one.topic.partition(number % PARTITIONS))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if number == 0:
            # A broker that dies before a partition holds anything takes its empty ledger with it, and then nothing
            # shows that nothing was stored (`test_partitions_without_state_or_records`).
            until(lambda: all(map(setup.holds_entries, partitions_of(one.topic))), "each partition holds a record")
        Event().wait(rng.uniform(1.0, 2.5))
        if number % 2:
            setup.cluster.kill(owner)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if number % 2:
            setup.cluster.restart(owner)
    one.published()
    one.check_each_once_in_order()


def test_without_deduplication_the_records_come_twice(setup: Setup, tmp_path: Path) -> None:
    """The control: what a broker does not remember is stored again, so it is its memory that the others rely on."""
    one = job(setup, tmp_path, 500)
    setup.admin.set_policy(one.topic, "deduplicationEnabled", False)
    partitions = [one.topic.partition(index) for index in range(PARTITIONS)]
    for topic in partitions:
        until(lambda topic=topic: setup.producers.deduplication_status(topic) == "Disabled", "it is off")
    one.refused("Disabled")
    for _ in range(2):
        checkpoint_path(one.file, NAME).unlink(missing_ok=True)
        assert publish_unchecked(one).stored == one.count
    assert sorted(number for numbers in one.stored() for number in numbers) == sorted([*range(one.count)] * 2)


class SeesNothing(BrokerTopicTails):
    def read_back(self, topic: TopicName, start: Position | None, producer_name: str) -> Tail:
        return Tail((), None)


def publish_unchecked(one: Job) -> FilePublishResult:
    """Publish to brokers that claim to deduplicate, by a publisher that ignores what is stored."""
    setup = one.setup
    connections = BinaryConnections(ClientCredentials(), TlsOptions(), CLOCK)
    owners = TopicOwners(setup.cluster.addresses.broker_service_url, connections)
    request = PublishRequest(one.topic, NAME, RecordFormat.JSON_LINES)
    with closing(connections), source_file(one.file) as source:
        return FilePublisher(
            source,
            request,
            LosingAnswers(setup.producers, every=10**9, lie=True),
            SeesNothing(owners, setup.admin.internal_stats, setup.admin.stats, CLOCK),
            CheckpointFile(checkpoint_path(one.file, NAME)),
            CLOCK,
            Event(),
        ).run()


def test_the_broker_has_forgotten_and_the_checkpoint_is_lost(setup: Setup, tmp_path: Path) -> None:
    one = job(setup, tmp_path, 5_000)
    one.killed(*BEHIND_A_CHECKPOINT)
    forget(setup, one.topic)
    one.killed(*BEHIND_A_CHECKPOINT)
    checkpoint_path(one.file, NAME).unlink()
    one.killed(*BEHIND_A_CHECKPOINT)
    forget(setup, one.topic)
    checkpoint_path(one.file, NAME).unlink()
    one.refused("most recently the sequence id", "--fresh")
    one.published()
    one.check_each_once_in_order()


def partitions_of(topic: TopicName) -> list[TopicName]:
    return [topic.partition(index) for index in range(PARTITIONS)]


def forget(setup: Setup, topic: TopicName) -> None:
    for on in (False, True):
        setup.switch(topic, partitions_of(topic), on=on)


def test_a_topic_that_was_trimmed_or_created_again_is_refused(setup: Setup, tmp_path: Path) -> None:
    jobs = []
    for name in ("created again", "trimmed", "one partition trimmed"):
        (tmp_path / name).mkdir()
        jobs.append(job(setup, tmp_path / name, 3_000))
    again, trimmed, partly = jobs
    for one in (again, trimmed):
        one.killed("after:record-published", 1_500, "--rate", "1000")
    setup.admin.delete_topic(again.topic, partitioned=True, force=True)
    setup.admin.create(again.topic, PARTITIONS)
    again.refused("the topic was deleted and created again")
    setup.trim_and_forget(trimmed.topic, partitions_of(trimmed.topic))
    trimmed.refused("it was trimmed")
    partly.published()
    checkpoint_path(partly.file, NAME).unlink()
    forget(setup, partly.topic)
    setup.trim_and_forget(partly.topic, [partly.topic.partition(1)])
    partly.refused("partition 1 shows nothing of this producer")


def test_partitions_without_state_or_records(setup: Setup, tmp_path: Path) -> None:
    """Empty ledgers are replaced when a topic moves: that matters only where a record may have been stored."""
    one = job(setup, tmp_path, 3_000)
    one.killed("after:record-published", 5)
    for topic in partitions_of(one.topic):
        setup.unload(topic)
    one.refused("delete the checkpoint and repeat the command")
    checkpoint_path(one.file, NAME).unlink()
    one.file.write_bytes(lines(range(3_000), keys=1))
    one.killed("after:record-published", 1_500, "--rate", "1000")
    forget(setup, one.topic)
    for topic in partitions_of(one.topic):
        setup.unload(topic)
    one.published()
    one.check_each_once_in_order()


def test_another_file_is_refused_with_where(setup: Setup, tmp_path: Path) -> None:
    one = job(setup, tmp_path, 3_000)
    one.killed("after:record-published", 1_500, "--rate", "1000")
    good = one.file.read_bytes()
    with one.file.open("r+b") as file:
        file.write(b" ")
    one.refused("changed between the bytes 0")
    one.file.write_bytes(lines(range(3_000, 6_000)))
    checkpoint_path(one.file, NAME).unlink()
    one.refused("the file")
    one.refused("has published to", "--fresh")
    one.file.write_bytes(good)
    one.published()
    one.check_each_once_in_order()
    setup.admin.add_partitions(one.topic, PARTITIONS + 1)
    one.refused("4 partitions and had 3")


def test_large_records_in_chunks(setup: Setup, tmp_path: Path) -> None:
    """Killed between them; some do not fit into an entry."""
    file = tmp_path / "large.bin"
    payloads = [
        b"record 0",
        b"record 1 " + b"a" * 12_000_000,
        b"record 2",
        b"record 3 " + b"b" * 7_000_000,
        b"record 4",
    ]
    file.write_bytes(b"".join(len(payload).to_bytes(4, "big") + payload for payload in payloads))
    one = Job(setup, file, setup.topic(), len(payloads))
    for nth in (2, 2, 1):
        ended = publish_until("after:record-published", nth, [*one.arguments, "--format", "length-prefixed"])
        assert ended.code in (KILLED, 0), ended
    one.published("--format", "length-prefixed")
    one.check_each_once_in_order()
    assert [message.data() for message in setup.stored(one.topic)] == payloads


def test_a_signal_ends_it_in_order(setup: Setup, tmp_path: Path) -> None:
    one = job(setup, tmp_path, 20_000)
    command = [sys.executable, "-m", "pulsar_sidecar", *one.arguments, "--rate", "2000"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(checkpoint_path(one.file, NAME).exists, "it publishes")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 4, err
    assert f"pulsar-sidecar publish {one.file}" in err
    assert "Traceback" not in err
    stopped = json.loads(out)
    assert 0 < stopped["records"] == stopped["stored"] < one.count
    summary = one.published()
    refused = summary["duplicatesRefused"]
    assert 0 < refused <= PARTITIONS, "each partition's last record"
    assert summary["storedEarlier"] == stopped["records"] - refused
    one.check_each_once_in_order()
