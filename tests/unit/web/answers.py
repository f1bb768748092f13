"""What the REST door answers about a cluster, for tests of pages."""

from typing import Any

from tests.fakes.clock import START_MS


def deletion_status(**changed: Any) -> dict[str, Any]:
    return {
        "enabled": True,
        "control": {"paused": False, "pausedReason": None, "ratePerSecond": None},
        "inflight": {"count": 100_000, "ageMs": 100, "oldestAgeMs": 300_000, "waitingBytes": 3 * 2**29},
        "deadLetters": 3,
        "deletedPerSecond": 1234.5,
        "instances": [
            {
                "name": "one",
                "advertisedUrl": "http://one:8750",
                "brokerUrl": "http://broker:8080",
                "startedMs": START_MS - 60_000,
            }
        ],
        "runningTopicDeletions": 2,
        "stuckTopicDeletions": 0,
        "runningNamespaceDeletions": 1,
        "lastError": None,
        "lastErrorAtMs": None,
        "adaptiveLimit": {"level": 25.0, "idleP99Ms": 1.5, "recentP99Ms": None},
        "protectedLedgers": [],
        "bookkeeperExclusiveToCluster": False,
        "warnings": [],
        **changed,
    }


def watch_status(**changed: Any) -> dict[str, Any]:
    return {
        "mode": "report",
        "state": "watching",
        "leader": {"name": "one", "advertisedUrl": "http://one:8750", "brokerUrl": None, "startedMs": START_MS},
        "braked": None,
        "holds": [],
        "detail": None,
        "walkedMs": START_MS,
        "walkSeconds": 0.2,
        "lagSeconds": 0.0,
        "ledgers": 12_000,
        "references": 13_000,
        "unreadable": 0,
        "unreadableNodes": [],
        "vanished": 0,
        "brakeLimit": 1000,
        "unlinked": 0,
        "leaks": {"leaked": 0},
        "leaked": {},
        "appended": 0,
        "unsoughtCopies": {},
        **changed,
    }


def leak(ledger_id: int, **changed: Any) -> dict[str, Any]:
    return {
        "ledgerId": ledger_id,
        "offloadAttempt": None,
        "state": "leaked",
        "cause": "trim",
        "sinceMs": START_MS - 3_600_000,
        "detail": "ledgerDeletionWatch=report appends nothing; set it to append",
        "topic": "persistent://public/default/orders",
        "path": "/managed-ledgers/public/default/persistent/orders",
        "lengthBytes": 2048,
        "appendedMs": None,
        "endedMs": None,
        **changed,
    }


def listed_leaks(*leaks: dict[str, Any], **changed: Any) -> dict[str, Any]:
    trend = [{"fromMs": START_MS - 7_200_000, "leaks": 3}, {"fromMs": START_MS - 3_600_000, "leaks": 1}]
    return {"total": len(leaks), "byCause": {"trim": 3, "schema": 1}, "trend": trend, "leaks": list(leaks), **changed}


def leak_explanation(ledger_id: int, leak: dict[str, Any] | None, *copies: dict[str, Any]) -> dict[str, Any]:
    return {
        "ledgerId": ledger_id,
        "exists": True,
        "namedBy": [],
        "owner": "/managed-ledgers/public/default/persistent/orders",
        "hold": None,
        "verdict": "nothing references it, and it may be deleted",
        "leak": leak,
        "copies": copies,
    }


def calendar(*subscriptions: dict[str, Any], **changed: Any) -> dict[str, Any]:
    counts = {"delayed": 12_000, "due": 3, "undelayed": 0, "unreadable": 0, "unread": 0, "fromBuckets": 11_000}
    times = [{"fromMs": START_MS + hour * 3_600_000, "messages": 6_000} for hour in (0, 1)]
    return {
        **counts,
        "nowMs": START_MS,
        "exact": False,
        "stepSeconds": 3600,
        "resolutionMs": 300_000,
        "times": times,
        "subscriptions": list(subscriptions),
        **changed,
    }


def due_counts(topic: str, subscription: str = "billing", **changed: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "subscription": subscription,
        "delayed": 10,
        "due": 0,
        "undelayed": 0,
        "unreadable": 0,
        "unread": 0,
        "fromBuckets": 10,
        "firstDueMs": START_MS + 60_000,
        "lastDueMs": START_MS + 7_200_000,
        "problem": None,
        **changed,
    }


def delayed_index(topic: str, *buckets: dict[str, Any], **changed: Any) -> dict[str, Any]:
    tracker = {"tracker": "bucket", "reason": "by its broker's setting"}
    return {
        "topic": topic,
        "subscription": "billing",
        "markDeletePosition": "7:0",
        "configured": tracker,
        "running": tracker,
        "nextLoad": tracker,
        "unreadable": 0,
        "indexes": 3,
        "left": 2,
        "done": 1,
        "sizeBytes": 2048,
        "problem": None,
        "buckets": list(buckets),
        **changed,
    }


def bucket(**changed: Any) -> dict[str, Any]:
    return {
        "name": "#pulsar.internal.delayed.bucket_7_8",
        "startLedgerId": 7,
        "endLedgerId": 8,
        "ledgerId": 100,
        "state": "CLOSED",
        "sizeBytes": 2048,
        "indexes": 3,
        "left": 2,
        "done": 1,
        "firstDueMs": START_MS,
        "lastDueMs": START_MS + 60_000,
        "problem": None,
        "segments": [],
        **changed,
    }


def stored_states(*states: dict[str, Any], **changed: Any) -> dict[str, Any]:
    return {
        "asOfMs": START_MS,
        "topics": 1,
        "subscriptions": 10_000,
        "full": 1,
        "nearlyFull": 2,
        "maxUnackedRangesToPersist": 10_000,
        "found": 10_000,
        "unreadable": 0,
        "reasons": [],
        "states": list(states),
        **changed,
    }


def stored_state(topic: str, **changed: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "subscription": "billing",
        "fullness": "fits",
        "pauseEnabled": False,
        "markDeletePosition": "7:0",
        "ranges": 4,
        "entries": 19,
        "acknowledged": 7,
        "stretches": [0, 100, 1],
        **changed,
    }


def stuck_cursors(*stuck: dict[str, Any], **changed: Any) -> dict[str, Any]:
    found = {"topics": 9, "cursors": 4, "found": len(stuck), "heldBytes": 2048, "stuck": list(stuck), "unreadable": []}
    return {**found, **changed}


def slowest_loads(*slowest: dict[str, Any]) -> dict[str, Any]:
    return {
        "topics": 9,
        "cursors": 4,
        "loadTimeoutSeconds": 60,
        "slowest": list(slowest),
        "unreadable": [],
        "assumption": "a broker replays 12,000 entries a second",
    }
