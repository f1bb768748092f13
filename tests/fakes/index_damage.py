"""Damage to a sound delayed index, for tests of checks and repairs; of one bucket it is the first."""

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.settings import IN_MEMORY_TRACKER_FACTORY
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    decode_metadata,
    encode_metadata,
    encode_segment,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path, managed_ledger_path
from pulsar_sidecar.protobuf import DelayedMessageIndexBucketMetadata_pb2 as metadata_pb
from pyroaring import BitMap

from tests.fakes.bookkeeper import bucket_custom_metadata, cursor_bytes, data_custom_metadata, ledger_metadata_bytes
from tests.fakes.checked_index import FIRST, HOUR_MS, SECOND, SUBSCRIPTION, CheckedIndex, tracker
from tests.fakes.delayed_index import TOPIC

CURSOR = cursor_path(TOPIC.managed_ledger_name, encode_cursor(SUBSCRIPTION))
FIELD_3 = b"\x18\x01"
"""Field of a message that has fewer fields."""


def lose_a_ledger(index: CheckedIndex) -> None:
    index.store.remove(ledger_path(LedgerId(FIRST)))


def point_to_data(index: CheckedIndex) -> None:
    custom = data_custom_metadata(TOPIC.managed_ledger_name)
    index.store.put(ledger_path(LedgerId(FIRST)), ledger_metadata_bytes(custom_metadata=custom))


def stamp_as_a_newer_broker_may(index: CheckedIndex) -> None:
    custom = bucket_custom_metadata(str(TOPIC), SUBSCRIPTION, "#pulsar.internal.delayed.bucket_7_8")
    custom["pulsar/delayedIndexVersion"] = b"2"
    index.store.put(ledger_path(LedgerId(FIRST)), ledger_metadata_bytes(custom_metadata=custom))


def write_entry_0_as_a_newer_broker_may(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 0] += FIELD_3


def write_a_segment_as_a_newer_broker_may(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 2] += FIELD_3


def misshape_the_key(index: CheckedIndex) -> None:
    index.store.put(CURSOR, cursor_bytes(mark_delete=(7, 0), buckets={"#pulsar.internal.delayed.bucket_7": FIRST}))


def cut_entry_0(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 0] = index.entries.payloads[FIRST, 0][:-3]


def claim_2_to_the_40_bits(index: CheckedIndex) -> None:
    message = metadata_pb.SnapshotMetadata.FromString(index.entries.payloads[FIRST, 0])
    every_container = BitMap()
    every_container.add_range(0, 2**32)
    message.metadata_list[0].delayed_index_bit_map[7] = every_container.serialize()
    index.entries.payloads[FIRST, 0] = message.SerializeToString()


def cut_a_segment(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 2] = index.entries.payloads[FIRST, 2][:-1]


def index_entries_beyond_32_bits(index: CheckedIndex) -> None:
    rows = [(due_ms, 7, 2**32 + number) for number, (due_ms, _, _) in enumerate(index.rows[FIRST][1])]
    index.entries.payloads[FIRST, 2] = encode_segment(DelayedIndexes.of(rows))


def lose_a_segment(index: CheckedIndex) -> None:
    del index.entries.payloads[FIRST, 2]


def lose_bookies(index: CheckedIndex) -> None:
    index.entries.unreadable[FIRST, 1] = "no bookie answers"


def lose_bookies_of_entry_0(index: CheckedIndex) -> None:
    index.entries.unreadable[FIRST, 0] = "no bookie answers"


def garble_the_ledgers_node(index: CheckedIndex) -> None:
    index.store.put(ledger_path(LedgerId(FIRST)), b"no metadata")


def garble_the_cursor(index: CheckedIndex) -> None:
    index.store.put(CURSOR, cursor_bytes() + b"\xff")


def garble_the_managed_ledger(index: CheckedIndex) -> None:
    index.store.put(managed_ledger_path(TOPIC.managed_ledger_name), b"\xff\xff")


def lose_the_cursors_ledger(index: CheckedIndex) -> None:
    index.cursors.unreadable = "the cursor's ledger 5 is gone"


def set_a_bit(index: CheckedIndex) -> None:
    segments = list(decode_metadata(index.entries.payloads[FIRST, 0]))
    bitmaps = {LedgerId(7): BitMap([1, 6]), LedgerId(8): BitMap([2])}
    segments[0] = segments[0].__class__(bitmaps, segments[0].min_schedule_timestamp, segments[0].max_schedule_timestamp)
    index.entries.payloads[FIRST, 0] = encode_metadata(segments)


def disorder_a_segment(index: CheckedIndex) -> None:
    index.entries.payloads[FIRST, 1] = encode_segment(DelayedIndexes.of(reversed(index.rows[FIRST][0])))


def seal_the_later_segment_first(index: CheckedIndex) -> None:
    index.rows[FIRST] = (index.rows[FIRST][1], index.rows[FIRST][0])
    index.seal(FIRST, 7, 8)


def leave_a_segment_out_of_entry_0(index: CheckedIndex) -> None:
    segments = decode_metadata(index.entries.payloads[FIRST, 0])
    index.entries.payloads[FIRST, 0] = encode_metadata(segments[:1])


def cover_another_ledger(index: CheckedIndex) -> None:
    index.rows[FIRST][0].append((index.rows[FIRST][0][-1][0], 9, 9))
    index.messages.due_ms[9, 9] = index.rows[FIRST][0][-1][0]
    index.seal(FIRST, 7, 8)


def index_a_message_in_two_segments(index: CheckedIndex) -> None:
    first, second = index.rows[FIRST]
    second.insert(0, (first[-1][0] + 1, *first[0][1:]))
    index.seal(FIRST, 7, 8)


def move_a_due_time(index: CheckedIndex) -> None:
    index.messages.due_ms[7, 3] = 5


def index_what_is_not_delayed(index: CheckedIndex) -> None:
    index.messages.due_ms[7, 3] = None


def index_what_does_not_exist(index: CheckedIndex) -> None:
    del index.messages.due_ms[7, 3]


def index_beyond_a_ledgers_end(index: CheckedIndex) -> None:
    index.rows[FIRST][1].append((index.rows[FIRST][1][-1][0], 8, 10))
    index.seal(FIRST, 7, 8)


def index_a_ledger_of_another_topic(index: CheckedIndex) -> None:
    index.topic.ledgers(7, 9, 10)


def overlap(index: CheckedIndex) -> None:
    index.topic.seal(SUBSCRIPTION, 102, 7, 9, *sorted([*index.rows[FIRST], *index.rows[SECOND]]))
    index.name()


def acknowledge_what_was_due(index: CheckedIndex) -> None:
    index.store.advance_ms(2 * HOUR_MS)
    index.name((8, 9))


def name_only_the_second(index: CheckedIndex) -> None:
    only = {str(BucketKey(LedgerId(9), LedgerId(9))): SECOND}
    index.store.put(CURSOR, cursor_bytes(mark_delete=(7, 0), buckets=only))


def forget_a_bucket(index: CheckedIndex) -> None:
    index.store.advance_ms(HOUR_MS)
    name_only_the_second(index)


def lose_the_subscription(index: CheckedIndex) -> None:
    index.store.advance_ms(HOUR_MS)
    index.store.remove(CURSOR)


def downgrade(index: CheckedIndex) -> None:
    index.brokers["b"] = tracker(IN_MEMORY_TRACKER_FACTORY)


def merge_three(index: CheckedIndex) -> None:
    index.brokers["b"] = tracker(max_num_buckets=3)


def lose_entry_0(index: CheckedIndex) -> None:
    del index.entries.payloads[FIRST, 0]
