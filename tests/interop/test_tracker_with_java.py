"""The delayed index beside the broker's own classes: both get the same random histories, and all is compared."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION

from tests.interop.java_tracker import JavaTrackers, java_trackers
from tests.interop.tracker_histories import history

SNAPSHOT_HISTORIES = 100


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTrackers]:
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    with java_trackers(DEFAULT_VERSION, tmp_path_factory.mktemp("java"), options) as trackers:
        yield trackers


def test_snapshots_are_read_as_java_reads_them_and_written_as_long_as_java_writes_them(java: JavaTrackers) -> None:
    seen = 0
    for seed in range(SNAPSHOT_HISTORIES):
        for ledger in _ledgers(java.answers(history(seed))):
            head, *tail = (base64.b64decode(entry) for entry in ledger["entries"])
            metadata, segments = decode_metadata(head), [decode_segment(entry) for entry in tail]
            assert _plain_metadata(metadata) == ledger["metadata"]
            assert [_rows(segment) for segment in segments] == ledger["segments"]
            assert [encode_segment(segment) for segment in segments] == tail
            # The ledgers of a map have no order, so only the bytes' number is the same.
            assert len(encode_metadata(map(segment_metadata_of, segments))) == len(head)
            seen += 1
    assert seen > SNAPSHOT_HISTORIES


def _ledgers(answers: list[Any]) -> Iterator[dict[str, Any]]:
    for answer in answers:
        if isinstance(answer, dict) and "ledgers" in answer:
            yield from answer["ledgers"].values()


def _plain_metadata(metadata: SnapshotMetadata) -> list[dict[str, Any]]:
    return [
        {
            "min": segment.min_schedule_timestamp,
            "max": segment.max_schedule_timestamp,
            "bits": {str(ledger): list(bitmap) for ledger, bitmap in segment.bitmaps.items()},
        }
        for segment in metadata
    ]


def _rows(segment: DelayedIndexes) -> list[list[int]]:
    columns = zip(segment.deliver_at_ms.tolist(), segment.ledgers.tolist(), segment.entries.tolist(), strict=True)
    return [list(row) for row in columns]
