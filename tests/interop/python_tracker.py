"""The tracker in Python behind the commands of ``BucketTracker.java``; its output has the same shape."""

import base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.settings import TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
)
from pulsar_sidecar.features.delayed_index.tracker.bucket_ranges import CutRange
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import (
    MemoryBucketProperties,
    MemorySnapshotStorage,
    StoredSnapshot,
)
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.sealed_buckets import RecoveryFailedError, TrackerFailedError
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.references import DELAYED_BUCKET_KEY_PREFIX

from tests.fakes.clock import FakeClock

ERROR = {"error": True}
UNKNOWN = object()
"""The response to a row before the one at which a batch failed."""


def python_answers(history: Sequence[str], *, batches: bool) -> list[Any]:
    """Return the response to each command; with ``batches``, successive messages are added at once."""
    driven = _Driven(history[0].split()[1:])
    answers: list[Any] = [None]
    rest = list(history[1:])
    while rest:
        adds = next((at for at, command in enumerate(rest) if not command.startswith("add ")), len(rest))
        if batches and adds > 1:
            answers += driven.add_all([tuple(map(int, command.split()[1:])) for command in rest[:adds]])
            del rest[:adds]
        else:
            answers.append(driven.answer(*rest.pop(0).split()))
    return answers


class _FailingStorage(MemorySnapshotStorage):
    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, int] = {}

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        self._may_fail("create")
        return super().create_bucket_snapshot(metadata, segments, owner)

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        self._may_fail("metadata")
        return super().get_bucket_snapshot_metadata(bucket_id)

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        self._may_fail("segment")
        return super().get_bucket_snapshot_segment(bucket_id, first_segment_entry_id, last_segment_entry_id)

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        self._may_fail("delete")
        super().delete_bucket_snapshot(bucket_id)

    def keep(self, payloads: Sequence[bytes], key: BucketKey) -> LedgerId:
        owner = BucketOwner(key, "", "")
        bucket_id = super().create_bucket_snapshot((), (), owner)
        self.snapshots[bucket_id] = StoredSnapshot(tuple(payloads), owner)
        return bucket_id

    def _may_fail(self, operation: str) -> None:
        if self.failures.get(operation, 0):
            self.failures[operation] -= 1
            raise TemporaryError(f"{operation} fails as it was told to; try again")


class _Driven:
    def __init__(self, words: Sequence[str]) -> None:
        numbers = list(map(int, words[:5]))
        self._settings = TrackerSettings(
            min_index_count=numbers[0],
            time_step_ms=numbers[1],
            max_indexes_per_segment=numbers[2],
            max_num_buckets=numbers[3],
            tick_time_ms=numbers[4],
            strict=words[5] == "strict",
        )
        self._clock = FakeClock(0)
        self._storage = _FailingStorage()
        self._properties = MemoryBucketProperties()
        self._tracker: BucketDelayedDeliveryTracker | None = None
        self.recover()

    def answer(self, command: str, *words: str) -> Any:
        act: Callable[..., Any] = getattr(self, command)
        try:
            return act(*words)
        except (TrackerFailedError, RecoveryFailedError, _NoTrackerError):
            return ERROR

    def add_all(self, rows: Sequence[tuple[int, ...]]) -> list[Any]:
        """Each row is ledger, entry and due time."""
        indexes = DelayedIndexes.of((due_ms, ledger, entry) for ledger, entry, due_ms in rows)
        try:
            answers: list[Any] = self.tracker.add_messages(indexes).tolist()
        except _NoTrackerError:
            answers = [ERROR] * len(rows)
        except TrackerFailedError as error:
            failed = error.row or 0
            answers = [UNKNOWN] * failed + [ERROR]
            answers += self.add_all(rows[failed + 1 :]) if failed + 1 < len(rows) else []
        return answers

    # --- commands ----------------------------------------------------------------------------------------------------

    def now(self, milliseconds: str) -> None:
        self._clock.advance_ms(int(milliseconds) - self._clock.now_ms())

    def add(self, ledger: str, entry: str, deliver_at_ms: str) -> bool:
        return self.tracker.add_message(int(ledger), int(entry), int(deliver_at_ms))

    def pop(self, most: str) -> list[list[int]]:
        return [list(position) for position in self.tracker.get_scheduled_messages(int(most))]

    def tick(self) -> None:
        self.tracker.tick()

    def has(self) -> bool:
        return self.tracker.has_message_available()

    def contains(self, ledger: str, entry: str) -> bool:
        return self.tracker.contains_message(int(ledger), int(entry))

    def count(self) -> int:
        return self.tracker.number_of_delayed_messages

    def clear(self) -> None:
        self.tracker.clear()

    def fail(self, operation: str, times: str) -> None:
        self._storage.failures[operation] = int(times)

    def put(self, start: str, end: str, *payloads: str) -> None:
        key = BucketKey(LedgerId(int(start)), LedgerId(int(end)))
        bucket_id = self._storage.keep([base64.b64decode(payload) for payload in payloads], key)
        self._properties.put(str(key), str(bucket_id))

    def lose(self, number: str) -> None:
        ids = list(self._properties.get().values())
        if ids:
            self._storage.snapshots.pop(LedgerId(int(ids[int(number) % len(ids)])), None)

    def rotate(self, number: str) -> None:
        properties = list(self._properties.get().items())
        first = int(number) % len(properties) if properties else 0
        self._properties.properties = dict(properties[first:] + properties[:first])

    def recover(self) -> None:
        self._tracker = None
        tracker = BucketDelayedDeliveryTracker(
            self._settings, self._storage, self._properties, self._clock.now_ms, topic_name="topic", cursor_name="sub"
        )
        tracker.recover()
        self._tracker = tracker

    def dump(self) -> dict[str, Any]:
        tracker = self.tracker
        mutable = tracker.mutable
        prefix = f"{DELAYED_BUCKET_KEY_PREFIX}_"
        return {
            "count": tracker.number_of_delayed_messages,
            "properties": {name.removeprefix(prefix): int(id_) for name, id_ in self._properties.get().items()},
            "ledgers": {str(id_): plain_snapshot(stored.payloads) for id_, stored in self._storage.snapshots.items()},
            "buckets": [{**_bucket(bucket), "range": _range(held)} for held, bucket in tracker.buckets.items()],
            "mutable": {
                "start": mutable.start,
                "end": mutable.end,
                "bits": _bits(mutable.bits),
                "queue": _rows(mutable.queue.rows()),
            },
            "shared": _rows(tracker.shared.rows()),
        }

    @property
    def tracker(self) -> BucketDelayedDeliveryTracker:
        if self._tracker is None:
            raise _NoTrackerError
        return self._tracker


class _NoTrackerError(Exception):
    """The tracker was not recovered."""


def _bucket(bucket: ImmutableBucket) -> dict[str, Any]:
    return {
        "start": bucket.key.start,
        "end": bucket.key.end,
        "id": bucket.bucket_id,
        "number": bucket.count,
        "current": bucket.current_segment,
        "last": bucket.last_segment,
        "length": bucket.snapshot_bytes,
        "bits": _bits(bucket.bits),
    }


def _range(held: CutRange) -> str:
    """Return the range as Guava prints it."""
    lower, upper = (divmod(cut, 2) for cut in held)
    return f"{'(' if lower[1] else '['}{lower[0]}..{upper[0]}{']' if upper[1] else ')'}"


def _bits(bits: PositionBits) -> dict[str, list[int]]:
    return {str(ledger): list(entries) for ledger, entries in bits.ledgers.items()}


@lru_cache(maxsize=1_000)
def plain_snapshot(payloads: tuple[bytes, ...]) -> dict[str, Any]:
    """Return a snapshot's entries, decoded."""
    metadata = [
        {
            "min": segment.min_schedule_timestamp,
            "max": segment.max_schedule_timestamp,
            "bits": _bits(PositionBits(segment.bitmaps)),
        }
        for segment in decode_metadata(payloads[0])
    ]
    return {"metadata": metadata, "segments": [_rows(decode_segment(payload)) for payload in payloads[1:]]}


def _rows(indexes: DelayedIndexes) -> list[list[int]]:
    columns = zip(indexes.deliver_at_ms.tolist(), indexes.ledgers.tolist(), indexes.entries.tolist(), strict=True)
    return [list(row) for row in columns]
