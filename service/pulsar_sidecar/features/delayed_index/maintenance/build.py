"""Building of buckets for an unloaded topic's backlog, so that the next topic load reads snapshots instead.

A broker skips entries whose bit is set in a bucket, and dispatches them by the bucket's segments alone: a bit without
an index loses a message. So the sidecar takes an index only from the entry's own ``deliverAt``, makes segments and bits
from the same rows, reads buckets back and compares them before any cursor names them, and sets no bit for entries that
a broker does not simply delay (messages of transactions, entries without ``deliverAt``): brokers read those themselves.

Invariant: the cursor names a new bucket only after it was read back as planned; the sidecar deletes a bucket that no
cursor names in the end, or the error names its ledger.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.inspection.show import recovery_of
from pulsar_sidecar.features.delayed_index.maintenance.attach import BucketPointers, PointerChange
from pulsar_sidecar.features.delayed_index.maintenance.bucket_plan import (
    PlannedBucket,
    planned_buckets,
    unacknowledged_of,
)
from pulsar_sidecar.features.delayed_index.ports import BrokerTrackers, BucketOwner, BucketSnapshotStorage, DelayTimes
from pulsar_sidecar.features.delayed_index.results.inspection import Tracker
from pulsar_sidecar.features.delayed_index.results.maintenance import (
    BuildReport,
    BuiltSubscription,
    LeftOutLedger,
    PointerOutcome,
)
from pulsar_sidecar.features.delayed_index.settings import BUCKET_TRACKER_FACTORY, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, encode_metadata, encode_segment
from pulsar_sidecar.features.delayed_index.stored import StoredIndex, StoredIndexes, StoredTopic
from pulsar_sidecar.model.errors import (
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.lookups import Absent, demanded
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class SubscriptionBuild:
    """Planned buckets of one subscription of a partition, or of a topic without partitions.

    Attributes:
        index: stored index; a change requires its version.
        covered: ledgers with unacknowledged messages that existing buckets cover.
        left_out: ledgers that are not in BookKeeper, with the reason; brokers read their messages as before.
    """

    index: StoredIndex
    buckets: tuple[PlannedBucket, ...]
    covered: tuple[LedgerId, ...]
    left_out: Mapping[LedgerId, str]

    def result(
        self, ledgers: Iterable[LedgerId] | None = None, outcome: PointerOutcome | None = None
    ) -> BuiltSubscription:
        """Return the result, with the ledgers of the written buckets in order, or None for a plan."""
        written = [None] * len(self.buckets) if ledgers is None else ledgers
        return BuiltSubscription(
            topic=str(self.index.topic),
            subscription=self.index.subscription,
            outcome=outcome,
            buckets=tuple(bucket.result(at) for bucket, at in zip(self.buckets, written, strict=True)),
            covered_ledger_ids=self.covered,
            left_out=tuple(LeftOutLedger(ledger_id, reason) for ledger_id, reason in self.left_out.items()),
        )


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """Buckets that would be written, and the hash to approve."""

    subscriptions: tuple[SubscriptionBuild, ...]
    hash: str

    def result(self) -> BuildReport:
        return BuildReport(self.hash, executed=False, subscriptions=tuple(each.result() for each in self.subscriptions))


@dataclass(frozen=True, slots=True)
class IndexBuilder:
    """Plans buckets, and writes and attaches them."""

    stored: StoredIndexes
    delays: DelayTimes
    trackers: BrokerTrackers
    snapshots: BucketSnapshotStorage
    pointers: BucketPointers

    def plan(self, topic: TopicName, subscription: str | None = None) -> BuildPlan:
        """Plan the buckets that a topic's backlog lacks, for all partitions of a partitioned topic.

        The same backlog gives the same plan. Changes nothing.

        Raises:
            NotFoundError: there is no such topic or subscription.
            ConflictError: a broker has the topic loaded, brokers do not run the bucket tracker, or the stored data is
                incomplete: then the next topic load would read the backlog all the same.
            TemporaryError: something could not be read.
        """
        settings = self._tracker_settings()
        builds = [
            build
            for place, found in self.stored.read(self.stored.topics.places_of(topic), subscription)
            for build in self._of_place(place, demanded(found, str(place)), settings)
        ]
        if subscription is not None and not builds:
            raise NotFoundError(f"there is no subscription {subscription} on {topic}")
        return BuildPlan(tuple(builds), _hash_of(builds))

    def execute(self, topic: TopicName, subscription: str | None, plan_hash: str) -> Sequence[BuiltSubscription]:
        """Write and attach the planned buckets, one subscription after the other.

        Raises:
            ConflictError: the plan has changed, or the topic or a cursor changed during execution; buckets of earlier
                subscriptions stay attached, and those of the failed one are deleted again.
            OutcomeUnknownError: the state of a cursor is unknown; the message names the ledgers that may be left.
        """
        plan = self.plan(topic, subscription)
        if plan.hash != plan_hash:
            raise ConflictError(
                f"the plan is now {plan.hash}, not the approved {plan_hash}: the backlog or a cursor has changed; "
                "review and approve the new plan"
            )
        built: list[BuiltSubscription] = []
        for build in plan.subscriptions:
            try:
                built += [self._build(build)] if build.buckets else []
            except SidecarError as error:
                if built:
                    before = ", ".join(f"{one.subscription} of {one.topic}" for one in built)
                    error.args = (f"{error}; the buckets of {before} are attached",)
                raise
        return built

    # --- planning ----------------------------------------------------------------------------------------------------

    def _tracker_settings(self) -> TrackerSettings:
        trackers = self.trackers.trackers()
        for broker, tracker in trackers.items():
            if tracker.factory != BUCKET_TRACKER_FACTORY:
                raise ConflictError(
                    f"broker {broker} runs {tracker.factory}, which reads no buckets; set "
                    f"delayedDeliveryTrackerFactoryClassName={BUCKET_TRACKER_FACTORY} on every broker first"
                )
            if tracker.settings.breaks_dispatch:
                raise ConflictError(
                    f"broker {broker} has delayedDeliveryMaxNumBuckets={tracker.settings.max_num_buckets}, with which "
                    "dispatching stops at the fourth bucket; set -1"
                )
        # Brokers may differ during a rolling restart. Each reads buckets made with another's settings, and the one that
        # allows the fewest buckets merges first.
        limits = [each.settings.max_num_buckets for each in trackers.values() if each.settings.max_num_buckets != -1]
        return replace(min(trackers.items())[1].settings, max_num_buckets=min(limits, default=-1))

    def _of_place(self, place: TopicName, topic: StoredTopic, settings: TrackerSettings) -> list[SubscriptionBuild]:
        self.pointers.demand_unloaded(place)
        lengths, left_out = self._lengths(topic)
        indexes = {
            name: demanded(each, f"subscription {name} of {place}") for name, each in topic.subscriptions.items()
        }
        for index in indexes.values():
            _demand_recoverable(index)
        waiting = {name: unacknowledged_of(index, lengths) for name, index in indexes.items()}
        delayed = {
            ledger_id: self.delays.delayed(ledger_id, metadata, needed)
            for ledger_id, metadata in lengths.items()
            if (needed := BitMap().union(*(each.uncovered.get(ledger_id, BitMap()) for each in waiting.values())))
        }
        builds = []
        for each in waiting.values():
            without = {id_: why for id_, why in left_out.items() if id_ >= each.first_ledger}
            buckets = planned_buckets(each, without, delayed, settings)
            builds.append(SubscriptionBuild(each.index, buckets, each.covered, without))
        return builds

    def _lengths(self, topic: StoredTopic) -> tuple[dict[LedgerId, LedgerMetadata], dict[LedgerId, str]]:
        """Return the topic's ledgers in BookKeeper, in order, and the reasons for leaving out the others."""
        found, left_out = {}, {}
        for ledger_id, read in self.stored.ledgers(topic.ledgers).items():
            if isinstance(read, Absent):
                if topic.ledgers[ledger_id].in_bookkeeper:
                    raise ConflictError(f"{topic.topic} lists ledger {ledger_id}, which is gone; run fsck first")
                left_out[ledger_id] = "offloaded"
                continue
            metadata = demanded(read, f"ledger {ledger_id} of {topic.topic}")
            if metadata.state is not LedgerState.CLOSED:
                raise ConflictError(
                    f"ledger {ledger_id} of {topic.topic} is not closed: its broker died, or has the topic loaded; "
                    f"load the topic and run pulsar-admin topics unload {topic.topic}"
                )
            found[ledger_id] = metadata
        return found, left_out

    # --- execution ---------------------------------------------------------------------------------------------------

    def _build(self, build: SubscriptionBuild) -> BuiltSubscription:
        index = build.index
        written = self._write(index, build.buckets)
        try:
            outcome = self.pointers.change(
                PointerChange(index.topic, index.subscription, index.version, attach=written)
            )
        except OutcomeUnknownError as error:
            raise OutcomeUnknownError(f"{error}; new ledgers: {_listed(written.values())}") from error
        except SidecarError as error:
            self._roll_back(index, written, error)
            raise
        if outcome is PointerOutcome.OVERWRITTEN:
            lost = ConflictError(
                f"a broker loaded {index.topic} at the same moment and wrote its own copy of the cursor of "
                f"{index.subscription}: nothing was attached; stop the topic's clients, unload it, and build again"
            )
            self._roll_back(index, written, lost)
            raise lost
        return build.result(written.values(), outcome)

    def _write(self, index: StoredIndex, buckets: Sequence[PlannedBucket]) -> Mapping[BucketKey, LedgerId]:
        written: dict[BucketKey, LedgerId] = {}
        try:
            for bucket in buckets:
                sealed = bucket.sealed
                owner = BucketOwner(bucket.key, str(index.topic), index.subscription)
                bucket_id = self.snapshots.create_bucket_snapshot(sealed.metadata, sealed.segments, owner)
                written[bucket.key] = bucket_id
                metadata = self.snapshots.get_bucket_snapshot_metadata(bucket_id)
                segments = self.snapshots.get_bucket_snapshot_segment(bucket_id, 1, len(sealed.segments))
                whole = len(segments) == len(sealed.segments) and all(map(_are_equal, segments, sealed.segments))
                if not whole or metadata != sealed.metadata:
                    raise TemporaryError(
                        f"bucket {bucket_id} does not read back as it was written; nothing was attached"
                    )
        except SidecarError as error:
            self._roll_back(index, written, error)
            raise
        return written

    def _roll_back(self, index: StoredIndex, written: Mapping[BucketKey, LedgerId], cause: SidecarError) -> None:
        """Delete new buckets that the cursor does not name; raise `OutcomeUnknownError` if any may be left."""
        left = dict(written)
        failure: SidecarError | None = None
        try:
            named = self.pointers.named(index.topic, index.subscription).values()
            for key, bucket_id in written.items():
                if bucket_id not in named:
                    self.snapshots.delete_bucket_snapshot(bucket_id)
                    del left[key]
        except SidecarError as error:
            failure = error
        if left:
            raise OutcomeUnknownError(
                f"{cause}; ledgers {_listed(left.values())} of new buckets are left "
                f"({failure or 'the cursor names them'}); run pulsar-sidecar delayed-index fsck {index.topic}"
            ) from cause


def _demand_recoverable(index: StoredIndex) -> None:
    recovery = recovery_of(index.buckets)
    if recovery.tracker is not Tracker.BUCKETS:
        raise ConflictError(
            f"the buckets of {index.subscription} on {index.topic} cannot all be used: {recovery.reason}; see "
            f"pulsar-sidecar delayed-index fsck {index.topic}, and run its repair first"
        )


def _hash_of(builds: Iterable[SubscriptionBuild]) -> str:
    digest = hashlib.sha256()
    for build in builds:
        index = build.index
        digest.update(f"{index.topic}\n{index.subscription}\n{index.version}\n".encode())
        for bucket in build.buckets:
            digest.update(f"{bucket.key}\n".encode())
            payloads = [encode_metadata(bucket.sealed.metadata), *map(encode_segment, bucket.sealed.segments)]
            for payload in payloads:
                digest.update(hashlib.sha256(payload).digest())
    return digest.hexdigest()


def _are_equal(one: DelayedIndexes, other: DelayedIndexes) -> bool:
    return all(map(np.array_equal, one.columns, other.columns))


def _listed(ledger_ids: Iterable[LedgerId]) -> str:
    return ", ".join(map(str, ledger_ids))
