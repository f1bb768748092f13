"""Dead letters as operators see them, by the commands."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.sidecars import SidecarProcess


def giving_up_after(tries: int) -> Mapping[str, object]:
    """Return settings of a sidecar that soon gives up on records.

    Brokers deliver a delay of a second at once, so a few tries end before a ledger has the age that other tests demand.
    """
    return {
        "two_phase_deletion_max_retry_delete_count": tries,
        "two_phase_deletion_open_ledger_min_age_in_seconds": 1,
        "two_phase_deletion_unlinked_ledger_min_age_in_seconds": 1,
    }


def listed(sidecar: SidecarProcess, ledger_id: int) -> list[dict[str, Any]]:
    """Return the dead letters of a ledger from ``dlq list``."""
    answer = sidecar.command("ledger-deletion", "dlq", "list", "--limit", "1000", "--output", "json")
    assert answer.exit_code == 0, answer.stderr
    letters: list[dict[str, Any]] = answer.json
    return [letter for letter in letters if (letter["record"] or {}).get("ledgerId") == ledger_id]


def redrive(sidecar: SidecarProcess, ledger_id: int) -> None:
    """Redrive a ledger's only dead letter by ``dlq redrive``."""
    answer = sidecar.command("ledger-deletion", "dlq", "redrive", str(ledger_id), "--output", "json")
    assert (answer.exit_code, answer.json["redriven"]) == (0, 1), answer.stderr
