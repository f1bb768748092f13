"""The delayed index beside the broker's own classes: both get the same random histories, and all is compared."""

import base64
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.snapshot import (
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION

from tests.cluster.choosing import line_under_test, version_under_test
from tests.cluster.java_programs import QUICK
from tests.fakes.index_building import DUE, IndexToBuild, small_buckets
from tests.interop.java_tracker import JavaTrackers, java_trackers
from tests.interop.python_tracker import ERROR, UNKNOWN, plain_snapshot, python_answers
from tests.interop.tracker_histories import history

OPTIONS = ("-Xmx256m", *QUICK)
FEW = 100
MANY = 5_000
RARE = (2839,)
"""Histories that once differed: segments of two overlapping buckets that end with the same message."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTrackers]:
    with java_trackers(DEFAULT_VERSION, tmp_path_factory.mktemp("java"), OPTIONS) as trackers:
        yield trackers


@pytest.fixture(scope="module")
def java_under_test(java: JavaTrackers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTrackers]:
    """Yield Java trackers of the version under test."""
    if version_under_test() == DEFAULT_VERSION:
        yield java
        return
    with java_trackers(version_under_test(), tmp_path_factory.mktemp("java-under-test"), OPTIONS) as trackers:
        yield trackers


@pytest.fixture(scope="module")
def histories(request: pytest.FixtureRequest) -> int:
    """More than a few where more than one round of faults is requested."""
    return FEW if request.config.getoption("--fault-rounds") == 1 else MANY


@pytest.mark.parametrize("batches", [False, True], ids=["one by one", "in batches"])
def test_the_tracker_behaves_like_javas(java: JavaTrackers, histories: int, batches: bool) -> None:
    """Every response, bucket, segment, bitmap and queue; also after merges, recoveries, overlaps, failures, losses."""
    seen: Counter[str] = Counter()
    first = MANY if batches else 0
    for seed in (*RARE, *range(first, first + histories)):
        commands = history(seed)
        ours = python_answers(commands, batches=batches)
        for number, (expected, answer) in enumerate(zip(_plain(java.answers(commands)), ours, strict=True)):
            where = f"history {seed}, command {number}: {commands[number]:.80}"
            assert answer is UNKNOWN or answer == expected, where
        seen.update(_events_in(ours))
    assert min(seen[what] for what in ("merge", "cut range", "error", "recovered in the middle")) > 0, seen


def test_snapshots_are_written_as_java_writes_them(java: JavaTrackers) -> None:
    seen = 0
    for seed in range(FEW):
        for answer in java.answers(history(seed)):
            for ledger in answer.get("ledgers", {}).values() if isinstance(answer, dict) else ():
                head, *tail = (base64.b64decode(entry) for entry in ledger["entries"])
                segments = [decode_segment(entry) for entry in tail]
                assert plain_snapshot((head, *tail)) == {name: ledger[name] for name in ("metadata", "segments")}
                assert [encode_segment(segment) for segment in segments] == tail
                # The ledgers of a map have no order, so only the bytes' number is the same.
                assert len(encode_metadata(map(segment_metadata_of, segments))) == len(head)
                times = ((each.min_schedule_timestamp, each.max_schedule_timestamp) for each in decode_metadata(head))
                assert all(end <= start for (_, end), (start, _) in pairwise(times)), "fsck relies on it"
                seen += 1
    assert seen > FEW


@pytest.mark.parametrize(("ledgers", "last"), [(1, 3), (3, 3), (4, 1), (4, 4)])
def test_java_merges_built_buckets_and_delivers_every_message(java: JavaTrackers, ledgers: int, last: int) -> None:
    most = 6
    backlog = {3 + each: [DUE + each + 10 * row for row in range(4 if each else 7)] for each in range(ledgers)}
    backlog[3 + ledgers] = [DUE + 10 * row for row in range(last)]
    built = IndexToBuild(backlog, small_buckets(max_num_buckets=most))
    built.build()
    commands = _loaded(built, most)
    answers, ours = list(_plain(java.answers(commands))), python_answers(commands, batches=False)
    assert ERROR not in answers
    assert answers == ours
    assert len(answers[-1]) == len(built.times) + 6 * (most + 3)


def test_java_throws_at_two_segments_of_which_build_makes_one(java: JavaTrackers) -> None:
    built = IndexToBuild({3 + each: [DUE, DUE + 1, DUE + 2] for each in range(6)}, small_buckets())
    built.build()
    assert ERROR in _plain(java.answers(_loaded(built, 6)))


@pytest.mark.parametrize(
    "history",
    [
        # Three buckets may be kept: the fourth one is merged, of which neither version can make fewer.
        ["new 3 100 2 3 1 strict", *(f"add {ledger} {entry} {DUE}" for ledger in range(1, 6) for entry in range(3))],
        # A ledger between the first and the last of the bucket that is being filled.
        ["new 9 100 2 -1 1 strict", f"add 1 0 {DUE}", f"add 3 0 {DUE}", f"add 2 0 {DUE}"],
    ],
    ids=["too few buckets to merge", "a ledger within the open bucket"],
)
def test_up_to_4_0_java_throws_where_4_2_goes_on(java_under_test: JavaTrackers, history: list[str]) -> None:
    goes_on = line_under_test() >= (4, 2)
    answers = list(_plain(java_under_test.answers([*history, f"now {DUE}", "pop 100"])))
    assert (ERROR in answers) is not goes_on
    if goes_on:
        assert len(answers[-1]) == len(history) - 1, "every message is handed out"


def _loaded(built: IndexToBuild, most: int) -> list[str]:
    """Return commands to load the buckets, seal new ones until they are merged, and deliver everything."""
    payloads = built.bookies.payloads
    puts = []
    for name, ledger_id in built.named().items():
        entries = [payloads[ledger_id, number] for number in range(sum(each == ledger_id for each, _ in payloads))]
        key = BucketKey.parse(name)
        puts.append(f"put {key.start} {key.end} {' '.join(base64.b64encode(entry).decode() for entry in entries)}")
    old = [f"add {ledger} {entry} {due}" for (ledger, entry), due in built.times.items()]
    new = [f"add {100 + each} {entry} {DUE + 5_000 + entry}" for each in range(most + 3) for entry in range(6)]
    return [f"new 3 100 2 {most} 1 strict", *puts, "recover", *old, *new, f"now {DUE + 10_000}", "pop 1000"]


def _plain(answers: list[Any]) -> Iterator[Any]:
    """Return the responses without an error's class and the entries' bytes, which only Java reports."""
    for answer in answers:
        if isinstance(answer, dict) and "ledgers" in answer:
            for ledger in answer["ledgers"].values():
                del ledger["entries"]
            yield answer
        else:
            yield ERROR if isinstance(answer, dict) else answer


def _events_in(answers: list[Any]) -> Iterator[str]:
    dumps = [answer for answer in answers if isinstance(answer, dict) and "buckets" in answer]
    yield from ("error" for answer in answers if answer == ERROR)
    for before, after in pairwise(dumps):
        for bucket in after["buckets"]:
            if not bucket["range"].startswith("[") or not bucket["range"].endswith("]"):
                yield "cut range"
            elif sum(_is_within(other, bucket) for other in before["buckets"]) > 1:
                yield "merge"
            if bucket["current"] > 1 and after["mutable"]["start"] == -1:
                yield "recovered in the middle"


def _is_within(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> bool:
    return bool(outer["start"] <= inner["start"] and inner["end"] <= outer["end"] and inner["id"] != outer["id"])
