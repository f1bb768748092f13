"""Results of the watch for leaked ledgers, for tests of the server, the CLI and the pages."""

from pulsar_sidecar.features.ledger_deletion.results import SidecarInstance
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    Leak,
    LeakCause,
    LeakState,
    LedgerExplanation,
    WatchMode,
    WatchState,
    WatchStatus,
)
from pulsar_sidecar.model.ids import LedgerId

TOPIC = "persistent://public/default/orders"
NODE = "/managed-ledgers/public/default/persistent/orders"
LEADER = SidecarInstance("east-1", "http://east-1:8750", None, 5)


def leak(
    ledger_id: int, cause: LeakCause | None = LeakCause.TRIM, state: LeakState = LeakState.LEAKED, detail: str = "why"
) -> Leak:
    return Leak(LedgerId(ledger_id), None, state, cause, 1_700_000_000_000, detail, TOPIC, NODE, 900)


def explanation(ledger_id: int) -> LedgerExplanation:
    verdict = "nothing references it, and it may be deleted"
    return LedgerExplanation(LedgerId(ledger_id), True, (), NODE, "public", verdict, leak(ledger_id))


def watching(braked: str | None = None) -> WatchStatus:
    """Return the status of the watching sidecar after its first whole reading."""
    return WatchStatus(
        WatchMode.REPORT,
        WatchState.WATCHING,
        LEADER,
        braked,
        ("public", "4711"),
        walked_ms=1_700_000_000_000,
        walk_seconds=2.5,
        lag_seconds=0.1,
        ledgers=10,
        references=9,
        unreadable=1,
        unreadable_nodes=(NODE,),
        vanished=3,
        brake_limit=50,
        unlinked=2,
        leaks={LeakState.LEAKED: 3},
        leaked={LeakCause.TRIM: 2, LeakCause.NEVER_LINKED: 1},
        appended=4,
        unsought_copies={"s3://b is not in offloadAllowedLocations": 2},
    )


def standby() -> WatchStatus:
    return WatchStatus(WatchMode.REPORT, WatchState.STANDBY, LEADER, None, ())
