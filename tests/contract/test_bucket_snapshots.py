"""Storage of a delayed index's snapshots (PIP-195), the same in memory and on bookies, fake or real; failures."""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import Replication
from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType, LedgerMetadata, LedgerSegment, LedgerState
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership import paths
from pulsar_sidecar.ownership.claims import BucketClaim, read_claim
from pulsar_sidecar.ownership.ledger_metadata import encode_ledger_metadata

from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.contract.snapshot_storages import (
    BookieStorage,
    MemoryStorage,
    SnapshotStorage,
    fake_bookkeeper,
    real_bookkeeper,
)

KEY = BucketKey(LedgerId(7), LedgerId(9))
TOPIC = "persistent://public/default/orders"
CURSOR = "a b/c"
OWNER = BucketOwner(KEY, TOPIC, CURSOR)
NEVER = LedgerId(2**31 - 3)
SEGMENTS = (
    DelayedIndexes.of((1_800_000_000_000 + number, 7 + number % 3, number) for number in range(4_000)),
    DelayedIndexes.of([(1_800_000_300_000, 9, 2**31)]),
)


def metadata_of(segments: tuple[DelayedIndexes, ...]) -> SnapshotMetadata:
    return tuple(map(segment_metadata_of, segments))


def same(found: DelayedIndexes, expected: DelayedIndexes) -> bool:
    pairs = zip(
        (found.deliver_at_ms, found.ledgers, found.entries),
        (expected.deliver_at_ms, expected.ledgers, expected.entries),
        strict=True,
    )
    return all(np.array_equal(one, other) for one, other in pairs)


@pytest.fixture(scope="module")
def real(cluster: ClusterUnderTest) -> Iterator[BookieStorage]:
    with ExitStack() as stack:
        yield real_bookkeeper(cluster, stack)


@pytest.fixture
def fake() -> Iterator[BookieStorage]:
    with ExitStack() as stack:
        yield fake_bookkeeper(stack)


@pytest.fixture(params=["fake", "real"])
def bookkeeper(request: pytest.FixtureRequest) -> BookieStorage:
    found: BookieStorage = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def memory() -> SnapshotStorage:
    return MemoryStorage()


@pytest.fixture(params=["memory", "fake", "real"])
def kept(request: pytest.FixtureRequest) -> SnapshotStorage:
    found: SnapshotStorage = request.getfixturevalue(request.param)
    return found


def create(kept: SnapshotStorage, *segments: DelayedIndexes) -> LedgerId:
    written = segments or SEGMENTS
    return kept.storage.create_bucket_snapshot(metadata_of(written), written, OWNER)


# --- behaviour of every storage ------------------------------------------------------------------------------------


def test_what_was_written_is_read(kept: SnapshotStorage) -> None:
    bucket_id = create(kept)
    assert kept.storage.get_bucket_snapshot_metadata(bucket_id) == metadata_of(SEGMENTS)
    for first, last in [(1, 1), (2, 2), (1, 2)]:
        found = kept.storage.get_bucket_snapshot_segment(bucket_id, first, last)
        assert [len(segment) for segment in found] == [len(segment) for segment in SEGMENTS[first - 1 : last]]
        assert all(map(same, found, SEGMENTS[first - 1 : last]))


def test_the_length_is_that_of_all_payloads(kept: SnapshotStorage) -> None:
    expected = len(encode_metadata(metadata_of(SEGMENTS))) + sum(map(len, map(encode_segment, SEGMENTS)))
    assert kept.storage.get_bucket_snapshot_length(create(kept)) == expected


def test_buckets_have_ids_of_their_own(kept: SnapshotStorage) -> None:
    one, other = create(kept), create(kept, SEGMENTS[1])
    assert one != other
    assert len(kept.storage.get_bucket_snapshot_metadata(other)) == 1
    assert len(kept.storage.get_bucket_snapshot_metadata(one)) == 2


def test_a_deleted_bucket_is_gone_and_may_be_deleted_again(kept: SnapshotStorage) -> None:
    bucket_id, other = create(kept), create(kept)
    kept.storage.delete_bucket_snapshot(bucket_id)
    kept.storage.delete_bucket_snapshot(bucket_id)
    kept.storage.delete_bucket_snapshot(NEVER)
    for gone in (bucket_id, NEVER):
        with pytest.raises(NotFoundError):
            kept.storage.get_bucket_snapshot_metadata(gone)
        with pytest.raises(NotFoundError):
            kept.storage.get_bucket_snapshot_segment(gone, 1, 1)
        with pytest.raises(NotFoundError):
            kept.storage.get_bucket_snapshot_length(gone)
    assert len(kept.storage.get_bucket_snapshot_metadata(other)) == 2


@pytest.mark.parametrize(("first", "last"), [(1, 3), (3, 3), (2, 1), (-1, 1)])
def test_segments_that_the_bucket_does_not_have(kept: SnapshotStorage, first: int, last: int) -> None:
    bucket_id = create(kept)
    with pytest.raises(InvalidInputError):
        kept.storage.get_bucket_snapshot_segment(bucket_id, first, last)


# --- on bookies ----------------------------------------------------------------------------------------------------


def test_the_ledger_names_its_owner_and_is_closed(bookkeeper: BookieStorage) -> None:
    metadata = bookkeeper.metadata(create(bookkeeper))
    assert read_claim(metadata.custom_metadata) == BucketClaim(parse_topic_name(TOPIC), CURSOR, str(KEY))
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 2)
    assert (metadata.digest_type, metadata.password) == (DigestType.CRC32C, b"")


def test_a_ledger_that_is_no_bucket_is_not_deleted(bookkeeper: BookieStorage) -> None:
    ledger_id = bookkeeper.writer.write([b"data"], {"application": b"other"}, Replication(1, 1, 1))
    with pytest.raises(ConflictError, match="holds no bucket"):
        bookkeeper.storage.delete_bucket_snapshot(ledger_id)
    assert bookkeeper.metadata(ledger_id).state is LedgerState.CLOSED


def test_too_few_bookies_keep_nothing(bookkeeper: BookieStorage) -> None:
    storage = bookkeeper.with_replication(Replication(9, 2, 2))
    with pytest.raises(TemporaryError, match="needs 9 bookies"):
        storage.create_bucket_snapshot(metadata_of(SEGMENTS), SEGMENTS, OWNER)


def test_a_bucket_whose_writer_died_is_not_read_yet(bookkeeper: BookieStorage) -> None:
    bucket_id = create(bookkeeper)
    metadata = bookkeeper.metadata(bucket_id)
    path = paths.ledger_path(bucket_id)
    node = bookkeeper.store.read(path)
    assert node is not None
    opened = LedgerMetadata(
        LedgerState.OPEN,
        metadata.ensemble_size,
        metadata.write_quorum_size,
        metadata.ack_quorum_size,
        0,
        EntryId(-1),
        (LedgerSegment(EntryId(0), metadata.segments[0].ensemble),),
        metadata.custom_metadata,
    )
    bookkeeper.store.write(path, encode_ledger_metadata(opened), node.version)
    with pytest.raises(TemporaryError, match="not closed"):
        bookkeeper.storage.get_bucket_snapshot_metadata(bucket_id)
    bookkeeper.storage.delete_bucket_snapshot(bucket_id)
    assert bookkeeper.store.read(path) is None


def test_a_bookie_that_died_leaves_nothing_half_written(
    real: BookieStorage, cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> None:
    before = create(real)
    cluster.kill("bookie-1")
    try:
        # Registered until its session ends: first a write to it fails, then there are too few.
        with pytest.raises(TemporaryError, match="needs 2 bookies"):
            create(real)
        assert len(real.storage.get_bucket_snapshot_metadata(before)) == 2, "the other bookie has it"
        alone = real.with_replication(Replication(1, 1, 1))
        bucket_id = alone.create_bucket_snapshot(metadata_of(SEGMENTS), SEGMENTS, OWNER)
        assert same(real.storage.get_bucket_snapshot_segment(bucket_id, 2, 2)[0], SEGMENTS[1])
    finally:
        cluster.restart("bookie-1")
    until(lambda: bool(create(real)), "buckets can be written again")
