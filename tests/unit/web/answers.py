"""Responses of the REST API about a cluster, for tests of pages."""

from dataclasses import replace
from typing import Any

from pulsar_sidecar.features.acknowledgements.results import Fullness, StoredAckState, StoredAckStates
from pulsar_sidecar.features.delayed_index.results.inspection import (
    BucketView,
    Calendar,
    DueCounts,
    DueTime,
    IndexView,
    Tracker,
    TrackerState,
)
from pulsar_sidecar.features.delayed_index.results.maintenance import CheckReport, CheckScope, Finding, FindingKind
from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate, ServiceStatus, SidecarInstance
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    Leak,
    LeakCause,
    LeakPeriod,
    LeakState,
    LedgerExplanation,
    ListedLeaks,
    WatchStatus,
)
from pulsar_sidecar.model.ids import LedgerId

from tests.fakes.clock import START_MS
from tests.fakes.deletion_service import IDLE
from tests.fakes.leaks import watching

HOSTILE = "persistent://public/default/<img src=x onerror=alert(1)>\"'&{{7*7}}"
SIDECAR = SidecarInstance("one", "http://one:8750", "http://broker:8080", START_MS - 60_000)
TRIMMED = Leak(
    ledger_id=LedgerId(7),
    offload_attempt=None,
    state=LeakState.LEAKED,
    cause=LeakCause.TRIM,
    since_ms=START_MS - 3_600_000,
    detail="ledgerDeletionWatch=report appends nothing; set it to append",
    topic="persistent://public/default/orders",
    path="/managed-ledgers/public/default/persistent/orders",
    length_bytes=2048,
)


def deletion_status(**changed: Any) -> ServiceStatus:
    status = replace(
        IDLE,
        inflight=InflightEstimate(100_000, 100, 300_000, 3 * 2**29),
        dead_letters=3,
        deleted_per_second=1234.5,
        instances=(SIDECAR,),
        running_topic_deletions=2,
        running_namespace_deletions=1,
        as_of_ms=START_MS,
    )
    return replace(status, **changed)


def watch_status(**changed: Any) -> WatchStatus:
    status = replace(
        watching(),
        leader=SIDECAR,
        holds=(),
        walked_ms=START_MS,
        ledgers=12_000,
        unreadable=0,
        unreadable_nodes=(),
        unlinked=0,
        leaks={LeakState.LEAKED: 0},
        unsought_copies={},
    )
    return replace(status, **changed)


def leak(ledger_id: int, **changed: Any) -> Leak:
    return replace(TRIMMED, ledger_id=LedgerId(ledger_id), **changed)


def listed_leaks(*leaks: Leak, total: int | None = None) -> ListedLeaks:
    trend = LeakPeriod(START_MS - 7_200_000, 3), LeakPeriod(START_MS - 3_600_000, 1)
    return ListedLeaks(len(leaks) if total is None else total, {"trim": 3, "schema": 1}, trend, leaks)


def leak_explanation(ledger_id: int, leak: Leak | None, *copies: Leak) -> LedgerExplanation:
    verdict = "nothing references it, and it may be deleted"
    return LedgerExplanation(LedgerId(ledger_id), True, (), TRIMMED.path, None, verdict, leak, copies)


def calendar(*subscriptions: DueCounts, **changed: Any) -> Calendar:
    times = (DueTime(START_MS, 6_000), DueTime(START_MS + 3_600_000, 6_000))
    counts = (12_000, 3, 0, 0, 0, 11_000)
    return replace(Calendar(*counts, START_MS, False, 3600, 300_000, times, subscriptions), **changed)


def due_counts(topic: str, subscription: str = "billing", **changed: Any) -> DueCounts:
    counts, first_and_last = (10, 0, 0, 0, 0), (START_MS + 60_000, START_MS + 7_200_000)
    found = DueCounts(topic, subscription, None, *counts, *first_and_last, from_buckets=10)
    return replace(found, **changed)


def delayed_index(topic: str, *buckets: BucketView, **changed: Any) -> IndexView:
    tracker = TrackerState(Tracker.BUCKETS, "by its broker's setting")
    found = IndexView(topic, "billing", "7:0", tracker, tracker, tracker, 0, 3, 2, 1, 2048, None, buckets)
    return replace(found, **changed)


def bucket(**changed: Any) -> BucketView:
    name, due = "#pulsar.internal.delayed.bucket_7_8", (START_MS, START_MS + 60_000)
    return replace(BucketView(name, 7, 8, 100, "CLOSED", 2048, 3, 2, 1, *due, None, ()), **changed)


def check_report(topic: str, cause: str) -> CheckReport:
    kind = FindingKind.DANGLING_POINTER
    finding = Finding(kind, topic, "billing", None, 100, cause, kind.consequence, kind.remedy)
    return CheckReport((finding,), CheckScope(1, 1, 1, 200, 200, 200, 0, None, 0.0), 0.1)


def stored_states(*states: StoredAckState, **changed: Any) -> StoredAckStates:
    found = StoredAckStates(START_MS, 1, 10_000, 1, 2, 10_000, 10_000, states, 0, ())
    return replace(found, **changed)


def stored_state(topic: str, **changed: Any) -> StoredAckState:
    found = StoredAckState(topic, "billing", Fullness.FITS, False, "7:0", 4, 19, 7, (0, 100, 1))
    return replace(found, **changed)
