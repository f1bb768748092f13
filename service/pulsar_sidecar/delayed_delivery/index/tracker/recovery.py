"""Taking over the buckets that a cursor names: ``recoverBucketSnapshot`` of Pulsar 4.0.8."""

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.settings import Behaviour
from pulsar_sidecar.delayed_delivery.index.snapshot import NO_INDEXES, DelayedIndexes
from pulsar_sidecar.delayed_delivery.index.tracker.bucket_ranges import BucketRanges, CutRange
from pulsar_sidecar.delayed_delivery.index.tracker.failures import RecoveryFailedError
from pulsar_sidecar.delayed_delivery.index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.snapshot_access import SnapshotAccess
from pulsar_sidecar.ledger_ownership.references import DELAYED_BUCKET_KEY_PREFIX
from pulsar_sidecar.model.errors import NotFoundError, SidecarError


def name_buckets(
    buckets: BucketRanges, access: SnapshotAccess, behaviour: Behaviour
) -> dict[CutRange, ImmutableBucket]:
    """Put those in that the cursor's properties name; the answer are those that are dropped since they overlap.

    Raises:
        UndecodableError: a property's name.
    """
    keys = [BucketKey.parse(name) for name in access.names() if name.startswith(DELAYED_BUCKET_KEY_PREFIX)]
    dropped: dict[CutRange, ImmutableBucket] = {}
    match behaviour:
        case Behaviour.AS_BROKER:
            for key in keys:
                dropped |= dict(buckets.overlapping(key))
                buckets.put(key, ImmutableBucket(key))
        case Behaviour.AS_PIP:
            # Of two that overlap, what a merge wrote is the wider one and begins with the other or before it.
            for key in sorted(keys, key=lambda each: (each.start, -each.end)):
                if buckets.overlapping(key):
                    dropped[CutRange.closed(key)] = ImmutableBucket(key)
                else:
                    buckets.put(key, ImmutableBucket(key))
    return dropped


def recover_bucket(
    bucket: ImmutableBucket, access: SnapshotAccess, cutoff_ms: int, behaviour: Behaviour
) -> DelayedIndexes:
    """Its first segment that is not due as a whole, which it is now at; none if all are, and it is to be dropped.

    Raises:
        UndecodableError: the property's value.
        RecoveryFailedError: the bucket was not read.
    """
    access.id_of(bucket)
    try:
        first = bucket.recover(access.metadata(bucket), cutoff_ms)
        if first > bucket.last_segment:
            return NO_INDEXES
        segments = access.segments(bucket, first, first)
    except NotFoundError as error:
        if behaviour is Behaviour.AS_PIP:
            return NO_INDEXES
        raise RecoveryFailedError(f"the bucket {bucket.key} does not exist any more") from error
    except SidecarError as error:
        raise RecoveryFailedError(f"the bucket {bucket.key} was not read: {error}") from error
    if not segments:
        return NO_INDEXES
    bucket.current_segment = first
    access.measure(bucket)
    return segments[0]
