"""Deduplication cursors that retain ledgers although deduplication is off, or that lag.

A cursor is left over where deduplication was switched off while no broker had the topic loaded: the next topic load
deletes it. It lags where no snapshot was taken for long: the entries after it are retained, and the next topic load
replays them.
Invariant: a cursor counts as left over only if the level that decides has deduplication off, or its broker reports
that; where the topic's own policy is unknown, the finding is not certain.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol

from cachetools import cachedmethod

from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.features.deduplication.inspection.policy_changes import Policies, RunningDeduplication
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import Amount, PolicyValues, StuckCursor, StuckReason, StuckReport
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.features.deduplication.stored import StoredDeduplication, StoredDeduplications
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, UndecodableError
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import DeduplicationStatus

_LATE: Final = "no recent snapshot"
_NORMAL_INTERVALS: Final = 2
"""Intervals of entries within which a snapshot may merely be due."""


class DeduplicationSettings(Protocol):
    """Deduplication settings of topics."""

    def broker(self) -> BrokerDeduplication:
        """Return brokers' settings."""

    def inherited(self, namespace: str) -> PolicyValues | Unreadable:
        """Return the policies of a topic without a policy of its own."""

    def of_topic(self, topic: TopicName) -> PolicyValues | Unreadable:
        """Return the policy of every level, including the topic's own."""


class BrokerDeduplicationSettings:
    """`DeduplicationSettings` from brokers, which are queried about each namespace once in a search."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._broker = policies.configured(None)
        self._inherited: dict[str, PolicyValues | Unreadable] = {}

    def broker(self) -> BrokerDeduplication:
        return self._broker

    @cachedmethod(lambda self: self._inherited)
    def inherited(self, namespace: str) -> PolicyValues | Unreadable:
        try:
            return self._policies.of_namespace(DeduplicationPolicy.ENABLED, namespace)
        except NotFoundError:
            # Topics outlive the policies of a namespace whose deletion broke off.
            return PolicyValues.of(self._broker.enabled, None)
        except UndecodableError as error:
            return Unreadable(str(error))

    def of_topic(self, topic: TopicName) -> PolicyValues | Unreadable:
        try:
            return self._policies.of_topic(DeduplicationPolicy.ENABLED, topic.base)
        except SidecarError as error:
            return Unreadable(str(error))


class StuckCursors:
    """Search of stored state; it changes nothing and loads no topic."""

    def __init__(
        self, stored: StoredDeduplications, settings: DeduplicationSettings, running: RunningDeduplication | None
    ) -> None:
        """Without ``running``, the search does not read brokers' loaded topics."""
        self._stored = stored
        self._settings = settings
        self._running = running
        self._unreadable: list[str] = []

    def find(self, places: Iterable[TopicName], limits: LagLimits, most: int) -> StuckReport:
        """Return the stuck cursors that retain most bytes; the figures count all of them.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        topics, cursors = 0, 0
        found: dict[TopicName, StuckCursor] = {}
        for place, stored in self._stored.read(places):
            topics += 1
            if isinstance(stored, StoredDeduplication) and isinstance(stored.snapshot, Absent):
                continue
            cursors += 1
            cursor = self._judged(place, stored, limits)
            if cursor is not None:
                found[place] = cursor
        stuck = self._with_remedies(found, limits)
        ranked = sorted(stuck, key=lambda each: (-each.held_bytes, each.topic))
        held_bytes = sum(each.held_bytes for each in ranked)
        return StuckReport(topics, cursors, len(ranked), held_bytes, tuple(ranked[:most]), tuple(self._unreadable))

    def _judged(
        self, place: TopicName, stored: StoredDeduplication | Unreadable, limits: LagLimits
    ) -> StuckCursor | None:
        snapshot = stored if isinstance(stored, Unreadable) else stored.snapshot
        if isinstance(snapshot, Unreadable):
            self._unreadable.append(f"{place}: {snapshot.reason}")
        if isinstance(stored, Unreadable) or not isinstance(snapshot, Snapshot):
            return None
        if stored.unmeasured is not None:
            self._unreadable.append(f"{place}: {stored.unmeasured}")
        lags = _exceeds(limits, stored.since)
        is_off, is_known, because = self._is_switched_off(place, ask=lags or bool(stored.held))
        if not is_off and not lags:
            return None
        if not is_off:
            because = _LATE
        held, alone = stored.held or (), self._stored.held_alone(stored)
        # A dump lacks the entries of cursors' ledgers, so the position is the node's, which is older.
        is_exact = snapshot.ledger_id is None or snapshot.entry_id is not None
        return StuckCursor(
            topic=str(place),
            reason=StuckReason.LEFT_OVER if is_off else StuckReason.LAGS,
            because=because,
            certain=is_known and is_exact,
            position=str(snapshot.position),
            since=stored.since,
            held_ledgers=len(held),
            held_bytes=stored.size_of(held),
            freed_bytes=None if isinstance(alone, Unreadable) else stored.size_of(alone),
            status=None,
            remedy="",
        )

    def _is_switched_off(self, place: TopicName, *, ask: bool) -> tuple[bool, bool, str]:
        """Return whether deduplication is off, whether that is certain, and which level decides.

        The sidecar reads a topic's own policy where the levels above have it off, or with ``ask``: it costs several
        requests. If the policy is unknown, the last element is the reason.
        """
        if place.is_system_topic:
            return True, True, "brokers never deduplicate a system topic"
        above = self._settings.inherited(place.namespace)
        if isinstance(above, Unreadable):
            self._unreadable.append(f"{place}: {above.reason}")
            return False, False, above.reason
        values = self._settings.of_topic(place) if ask or not above.applied else above
        if isinstance(values, Unreadable):
            if not above.applied:
                return True, False, f"off by the {above.decided_by}; {values.reason}"
            # A dump never has the topic's own policy.
            if self._running is not None:
                self._unreadable.append(f"{place}: its own policy is not known: {values.reason}")
            return False, False, values.reason
        return not values.applied, True, f"off by the {values.decided_by}"

    def _with_remedies(self, found: Mapping[TopicName, StuckCursor], limits: LagLimits) -> Iterator[StuckCursor]:
        statuses, asked = self._statuses(list(found))
        broker = self._settings.broker()
        for place, cursor in found.items():
            status = statuses.get(place)
            judged = cursor
            if cursor.reason is StuckReason.LEFT_OVER and status == DeduplicationStatus.ENABLED:
                # The broker's behaviour counts, whatever the policies are.
                if not _exceeds(limits, cursor.since):
                    continue
                judged = replace(cursor, reason=StuckReason.LAGS, because=_LATE)
            yield replace(judged, status=status, remedy=_remedy(judged, status, broker, asked=asked))

    def _statuses(self, topics: Sequence[TopicName]) -> tuple[Mapping[TopicName, str], bool]:
        if self._running is None or not topics:
            return {}, False
        try:
            return self._running.statuses(topics, len(topics)), True
        except SidecarError as error:
            self._unreadable.append(f"brokers did not report which of these topics they have loaded: {error}")
            return {}, False


def _exceeds(limits: LagLimits, behind: Amount | None) -> bool:
    return behind is not None and (behind.entries > limits.entries or behind.size_bytes > limits.size_bytes)


def _remedy(cursor: StuckCursor, status: str | None, broker: BrokerDeduplication, *, asked: bool) -> str:
    load, unload = f"pulsar-admin topics stats {cursor.topic}", f"pulsar-admin topics unload {cursor.topic}"
    is_loaded = status is not None
    unless = "" if asked else "if no broker has it loaded, "
    if status == DeduplicationStatus.RECOVERING:
        return "wait: its broker is replaying it"
    if is_loaded and status != DeduplicationStatus.ENABLED:
        is_off = status == DeduplicationStatus.DISABLED
        late = " (its broker reports Disabled: it may have deleted the cursor by now)" if is_off else ""
        return f"unload the topic and load it, so that its broker tries again{late}: {unload}; {load}"
    entries = 0 if cursor.since is None else cursor.since.entries
    if cursor.reason is StuckReason.LEFT_OVER:
        return f"{unless}load the topic once: its broker then deletes the cursor: {load}"
    if not is_loaded and entries >= broker.entries_interval:
        return f"{unless}load the topic: its broker replays the entries, and takes a snapshot: {load}"
    if entries > _NORMAL_INTERVALS * broker.entries_interval:
        return (
            'search its broker\'s log for "deduplication snapshot": snapshots fail, or one never ends and blocks the '
            f"next; unload and load the topic to replay the entries and take one: {unload}; {load}"
        )
    return (
        "have brokers take snapshots by time (topics set-deduplication-snapshot-interval), or more often "
        f"(brokerDeduplicationEntriesInterval is {broker.entries_interval:,})"
    )
