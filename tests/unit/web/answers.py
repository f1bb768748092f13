"""What the REST door answers about a cluster, for tests of pages."""

from typing import Any

from tests.fakes.clock import START_MS


def deletion_status(**changed: Any) -> dict[str, Any]:
    return {
        "enabled": True,
        "control": {"paused": False, "pausedReason": None, "ratePerSecond": None},
        "inflight": {"count": 100_000, "ageMs": 100, "oldestAgeMs": 300_000, "waitingBytes": 3 * 2**29},
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
        **changed,
    }
