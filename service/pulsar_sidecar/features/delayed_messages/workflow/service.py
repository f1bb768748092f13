"""Service behind the routes of delayed messages, and its two loops.

One loop follows the log on every sidecar; the other reconciles cursors with it on the leader.
"""

import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from cachetools import LRUCache

from pulsar_sidecar.features.delayed_messages.cancel.plan import not_found
from pulsar_sidecar.features.delayed_messages.cancel.reconcile import BROKER_STORES_EVERY_MS
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.metrics import CancellationMetrics
from pulsar_sidecar.features.delayed_messages.ports import Configuration, Ports
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    CancelStatus,
    Cause,
    DelayedMessage,
    KnownCancellation,
    MessageOutcome,
    Preview,
    RescheduleResult,
    Verdict,
    message_outcome,
)
from pulsar_sidecar.features.delayed_messages.selecting import (
    Reading,
    SelectedBatch,
    Selection,
    batches_of,
    find_selected,
    hash_of,
    preview,
)
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.features.delayed_messages.workflow.canceller import Canceller
from pulsar_sidecar.features.delayed_messages.workflow.reconciler import Reconciler
from pulsar_sidecar.features.delayed_messages.workflow.rescheduling import Rescheduler
from pulsar_sidecar.model.clocks import attempts
from pulsar_sidecar.model.errors import (
    ConflictError,
    DisabledError,
    NotFoundError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.runtime import Leadership, SupervisedLoops

log = structlog.get_logger("delayed-delivery")

LEADER_NODE: Final = "/pulsar-sidecar/delayed-delivery/asserter"
_BATCH = 5_000
_BATCHES_AT_ONCE = 4
_LOOK_AGAIN_SECONDS = BROKER_STORES_EVERY_MS / 1000 / 4
_SAFE_LEAD_MS = 5_000
_ROUND_SECONDS = 0.2
_LEADING_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 15.0
_PARTITIONS_SECONDS = 10.0
"""Maximum age of the number of partitions for a message found in one of them."""
_MOST_ROWS: Final = 2_000_000
"""Rows of all cached previews together, 66 MB; the oldest are evicted first, and read again when confirmed."""
_MOST_PREVIEWS: Final = 32


class DelayedDelivery:
    """Cancelling delayed messages on one sidecar; every call may be repeated.

    If a topic is partitioned, a target names its partition, or the sidecar finds the partition by the ledger.
    """

    def __init__(self, configuration: Configuration, ports: Ports, name: str, metrics: CancellationMetrics) -> None:
        self._configuration = configuration
        self._ports = ports
        self._stop = threading.Event()
        self._store = CancellationStore(ports.log)
        self._canceller = Canceller(ports, self._store, metrics, self._stop)
        self._reconciler = Reconciler(ports, self._store, configuration, metrics, self._stop)
        self._rescheduler = Rescheduler(ports, self._store, self._canceller, self._stop)
        self._previews = PreviewCache()
        self._leadership = Leadership(ports.metadata, LEADER_NODE, name.encode())
        self._leading = False
        leads = (lambda: self._leading) if configuration.enabled else None
        metrics.bind(lambda: self._store.index.open_count, leads)
        self._clock = ports.clock
        self._last_error: str | None = None
        self._last_error_at_ms: int | None = None
        self._loops = SupervisedLoops(
            "delayed-delivery", ports.clock, self._stop, self._note_failure, _LONGEST_BACKOFF_SECONDS
        )
        self._batches = ThreadPoolExecutor(_BATCHES_AT_ONCE, thread_name_prefix="cancel-batch")

    # --- lifecycle -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loops; return at once."""
        if self._configuration.enabled:
            self._loops.start({"cancellations-log": self._follow, "cancellations-reconcile": self._reconcile})

    def close(self) -> None:
        """Resign as leader and leave every subscription; idempotent."""
        self._stop.set()
        self._loops.join()
        if self._leading:
            try:
                self._leadership.resign()
            except SidecarError as error:
                log.warning(
                    "resigning as leader failed; another sidecar takes over when this session expires", error=str(error)
                )
        self._batches.shutdown(wait=True)
        self._canceller.close()
        self._ports.acknowledger.close()

    def cancelling_status(self) -> CancelStatus:
        return CancelStatus(
            enabled=self._configuration.enabled,
            asserting=self._leading,
            open_cancellations=self._store.index.open_count,
            log_read=self._store.caught_up.is_set(),
            last_error=self._last_error,
            last_error_at_ms=self._last_error_at_ms,
        )

    def _note_failure(self, failure: str) -> None:
        self._last_error, self._last_error_at_ms = failure, self._clock.now_ms()

    def _follow(self) -> None:
        self._ports.log.ensure()
        self._store.begin_following()
        try:
            self._ports.log.follow(self._store.apply, self._caught_up, self._stop.is_set)
        finally:
            self._store.follows = False

    def _caught_up(self, unreadable: int) -> None:
        self._store.note_caught_up(unreadable)
        log.info("cancellation log read", open=self._store.index.open_count)

    def _reconcile(self) -> None:
        clock, asked_at = self._ports.clock, -_LEADING_SECONDS
        try:
            while not self._stop.is_set():
                now = clock.monotonic_seconds()
                if now - asked_at >= _LEADING_SECONDS:
                    self._note_leading(self._store.caught_up.is_set() and self._leadership.take())
                    asked_at = now
                if self._leading:
                    self._reconciler.round()
                    self._rescheduler.round()
                clock.wait_seconds(_ROUND_SECONDS, self._stop)
        except BaseException:
            self._leading = False
            raise

    def _note_leading(self, leading: bool) -> None:
        if leading and not self._leading:
            self._reconciler.begin_leading()
            log.info("became leader; reconciling cancellations")
        self._leading = leading

    # --- cancelling ------------------------------------------------------------------------------------------------

    def cancel(self, topic: TopicName, targets: Sequence[Target], options: CancelOptions) -> list[MessageOutcome]:
        """Cancel targets and return one outcome for each, in order.

        Raises:
            NotFoundError: there is no such topic.
            DisabledError: cancelling is switched off.
            TemporaryError: brokers are unreachable; nothing was acknowledged that is not in the log.
        """
        self._check_enabled()
        places = self._located(topic, targets)
        outcomes = {index: _nowhere(topic, targets[index]) for index in places.pop(None, ())}
        batches = [
            (place, indexes[begin : begin + _BATCH])
            for place, indexes in places.items()
            if place is not None
            for begin in range(0, len(indexes), _BATCH)
        ]

        def carry_out(place: TopicName, indexes: list[int]) -> list[MessageOutcome]:
            found = self._canceller.cancel(place, [targets[index] for index in indexes], options)
            if options.wait_persisted:
                return self._persisted(place, [targets[index].position for index in indexes], found)
            return found

        if len(batches) == 1:
            done = [carry_out(*batches[0])]
        else:
            futures = [self._batches.submit(carry_out, *batch) for batch in batches]
            done = [future.result() for future in futures]
        for (_, indexes), those in zip(batches, done, strict=True):
            outcomes.update(zip(indexes, those, strict=True))
        return [outcomes[index] for index in range(len(targets))]

    def _located(self, topic: TopicName, targets: Sequence[Target]) -> dict[TopicName | None, list[int]]:
        """Return the targets' indexes by the topic that holds their entries; None if no partition does."""
        places = self._places(topic, targets, _PARTITIONS_SECONDS)
        # The topic may have more partitions now than the cached number.
        return self._places(topic, targets, 0.0) if None in places else places

    def _places(
        self, topic: TopicName, targets: Sequence[Target], max_age_seconds: float
    ) -> dict[TopicName | None, list[int]]:
        partitions = self._ports.topics.partitions(topic, max_age_seconds=max_age_seconds)
        if partitions is None:
            raise NotFoundError(f"there is no topic {topic}")
        if not partitions:
            return {topic: list(range(len(targets)))}
        places: defaultdict[TopicName | None, list[int]] = defaultdict(list)
        of_ledger: dict[int, TopicName | None] = {}
        for index, target in enumerate(targets):
            if target.partition is not None and 0 <= target.partition < partitions:
                places[topic.partition(target.partition)].append(index)
            else:
                ledger_id = target.position.ledger_id
                if ledger_id not in of_ledger:
                    found = self._ports.topics.partition_of_ledger(topic, partitions, ledger_id)
                    of_ledger[ledger_id] = None if found is None else topic.partition(found)
                places[of_ledger[ledger_id]].append(index)
        return dict(places)

    # --- status -----------------------------------------------------------------------------------------------------

    def _persisted(
        self, topic: TopicName, positions: Sequence[Position], outcomes: Sequence[MessageOutcome]
    ) -> list[MessageOutcome]:
        """Return the outcomes once everything acknowledged is PERSISTED, or as they are at the timeout."""
        now = partial(self._now, topic)
        patience_seconds = self._configuration.persist_patience_ms / 1000
        outcomes = list(map(now, positions, outcomes))
        for _ in attempts(self._ports.clock, patience_seconds, _LOOK_AGAIN_SECONDS, self._stop):
            waiting = {
                verdict.subscription
                for outcome in outcomes
                for verdict in outcome.verdicts
                if verdict.proof in (CancellationStatus.ACCEPTED, CancellationStatus.ACKED)
            }
            if not waiting:
                break
            for name in waiting:
                # If the broker is unreachable, the loop continues, and the response has the status so far.
                with suppress(SidecarError):
                    if name is not None:
                        self._reconciler.check_stored_for_caller((topic, name))
            outcomes = list(map(now, positions, outcomes))
        return outcomes

    def _now(self, topic: TopicName, position: Position, outcome: MessageOutcome) -> MessageOutcome:
        def newest(verdict: Verdict) -> Verdict:
            if verdict.subscription is None or not verdict.proof.open:
                return verdict
            known = self._store.index.known(topic, position, verdict.subscription)
            return verdict if known is None else known.verdict()

        return message_outcome(topic, position, tuple(map(newest, outcome.verdicts)), outcome.warnings)

    def cancellations(self, topic: TopicName, position: Position) -> list[KnownCancellation]:
        """Return the cancellations of one message, by subscription.

        Raises:
            NotFoundError: no cancellation of the message is known.
        """
        self._check_enabled()
        self._store.await_log()
        found = self._store.index.find(topic, position)
        if not found and (partitions := self._ports.topics.partitions(topic)):
            index = self._ports.topics.partition_of_ledger(topic, partitions, position.ledger_id)
            found = [] if index is None else self._store.index.find(topic.partition(index), position)
        if not found:
            raise NotFoundError(f"there is no cancellation of {position} on {topic}, or it ended long ago")
        return [one.known() for one in found]

    def message(self, topic: TopicName, position: Position) -> DelayedMessage:
        """Return a delayed message by its id.

        Raises:
            NotFoundError: there is no such topic or entry, or the message is not delayed.
            TemporaryError: it cannot be read.
        """
        (place,) = self._located(topic, [Target(position)])
        if place is None:
            raise NotFoundError(f"{topic} has no ledger {position.ledger_id}")
        facts = self._ports.entries.read(place, {position})[position]
        if isinstance(facts, Unreadable):
            raise TemporaryError(f"{position} of {topic} cannot be read: {facts.reason}")
        if isinstance(facts, Absent):
            raise NotFoundError(f"{topic} has no entry {position}")
        if facts.deliver_at_ms is None:
            raise NotFoundError(f"{position} of {topic} is not a delayed message")
        return DelayedMessage(
            topic=str(place),
            ledger_id=position.ledger_id,
            entry_id=position.entry_id,
            deliver_at=facts.deliver_at_ms,
            key=facts.key,
            producer_name=facts.producer_name,
            sequence_id=facts.sequence_id,
            publish_time=facts.publish_time_ms,
        )

    # --- selections ------------------------------------------------------------------------------------------------

    def preview(self, topic: TopicName, selection: Selection) -> Preview:
        """Preview a selection's cancellations; nothing is changed.

        Raises:
            InvalidInputError: the selection has no criterion, or an empty range.
            NotFoundError: there is no such topic or subscription.
            ConflictError: nothing can be cancelled on one of the named subscriptions, or on any subscription.
        """
        self._check_enabled()
        selection.check()
        now_ms = self._ports.brokers_now_ms()
        before_ms = selection.published_before_ms
        exact = replace(
            selection,
            due_from_ms=max(selection.due_from_ms or 0, now_ms + _SAFE_LEAD_MS),
            published_before_ms=now_ms if before_ms is None else min(before_ms, now_ms),
        )
        reading: Reading = {}
        found = find_selected(self._ports, topic, exact, reading)
        shown = preview(exact, found, reading)
        self._previews.keep(topic, exact, shown.hash, reading)
        return shown

    def confirm_selected(self, topic: TopicName, selection: Selection, confirmed_hash: str) -> list[SelectedBatch]:
        """Return exactly the previewed messages, in batches for `cancel_batch`; nothing is changed yet.

        Raises:
            ConflictError: the selection finds other messages now; also raises as `preview` does.
        """
        self._check_enabled()
        selection.check()
        reading = self._previews.take(topic, selection, confirmed_hash)
        found = find_selected(self._ports, topic, selection, reading)
        if hash_of(selection, found) != confirmed_hash:
            count = sum(map(len, found.values()))
            raise ConflictError(
                f"the selection now finds {format_count(count, 'message')}, not the ones that were previewed (some "
                "came due, or were acknowledged); nothing was cancelled: preview again and confirm the new hash"
            )
        return list(batches_of(selection, found, _BATCH))

    def cancel_batch(self, batch: SelectedBatch, options: CancelOptions) -> list[MessageOutcome]:
        """Cancel a batch and return one outcome for each message, in order.

        Makes every check of `cancel`, but reads no plain entry again. Raises as `cancel` does.
        """
        return self._canceller.cancel(batch.topic, batch.targets(), options, batch.known())

    # --- rescheduling ----------------------------------------------------------------------------------------------

    def reschedule(
        self, topic: TopicName, target: Target, deliver_at_ms: int | None, options: CancelOptions
    ) -> RescheduleResult:
        """Publish a message again, now (expedite) or with another due time, and cancel the original.

        At most one copy is ever published; a repeated request finds it. If the broker dispatches the original
        meanwhile, both are delivered.

        Raises:
            NotFoundError: there is no such topic.
            PermanentError: the message cannot be published again as it is.
        """
        self._check_enabled()
        places = self._located(topic, [target])
        place = next(iter(places))
        if place is None:
            return RescheduleResult(None, deliver_at_ms, _nowhere(topic, target))
        return self._rescheduler.reschedule(place, target, deliver_at_ms, options)

    def _check_enabled(self) -> None:
        if not self._configuration.enabled:
            raise DisabledError("cancelling delayed messages is off; set delayedMessageCancellingEnabled=true")


def _nowhere(topic: TopicName, target: Target) -> MessageOutcome:
    reason = f"no partition of {topic} has a ledger {target.position.ledger_id}"
    return message_outcome(topic, target.position, (not_found(Cause.NO_ENTRY, reason),))


# --- cache of previews -----------------------------------------------------------------------------------------------


_Preview = tuple[Selection, Reading]


class PreviewCache:
    """Readings of the last previews, each returned once; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._previews: LRUCache[tuple[TopicName, str], _Preview] = LRUCache(_MOST_ROWS, getsizeof=_weight)

    def keep(self, topic: TopicName, selection: Selection, shown_hash: str, reading: Reading) -> None:
        """Keep a reading until the preview is confirmed or the cache evicts it."""
        with self._lock, suppress(ValueError):  # one that is larger than the cache is not kept
            self._previews[topic, shown_hash] = selection, reading

    def take(self, topic: TopicName, selection: Selection, confirmed_hash: str) -> Reading:
        """Return and remove the reading of exactly this selection; empty if there is none."""
        with self._lock:
            kept = self._previews.pop((topic, confirmed_hash), None)
        return kept[1] if kept is not None and kept[0] == selection else {}


def _weight(preview: _Preview) -> int:
    return max(sum(len(part.rows) for part in preview[1].values()), _MOST_ROWS // _MOST_PREVIEWS)
