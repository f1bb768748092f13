"""Dead letters as operators see them: through the commands."""

from typing import Any

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import SidecarProcess


def listed(sidecar: SidecarProcess, ledger_id: int) -> list[dict[str, Any]]:
    """What ``dlq list`` shows of a ledger."""
    answer = sidecar.command("ledger-deletion", "dlq", "list", "--limit", "1000", "--output", "json")
    assert answer.exit_code == 0, answer.stderr
    letters: list[dict[str, Any]] = answer.json
    return [letter for letter in letters if (letter["record"] or {}).get("ledgerId") == ledger_id]


def redrive(sidecar: SidecarProcess, ledger_id: int) -> None:
    """``dlq redrive`` of a ledger's one dead letter."""
    answer = sidecar.command("ledger-deletion", "dlq", "redrive", str(ledger_id), "--output", "json")
    assert (answer.exit_code, answer.json["redriven"]) == (0, 1), answer.stderr


def redrive_until_deleted(scene: Scene, sidecar: SidecarProcess, ledger_id: int) -> None:
    """Again if it is given up as too young: brokers deliver a delay of a second at once, so few tries are soon over."""

    def deleted() -> bool:
        if listed(sidecar, ledger_id):
            redrive(sidecar, ledger_id)
        return scene.oracles.finals(ledger_id)[-1].decision == "deleted"

    until(deleted, f"ledger {ledger_id} is redriven and deleted")
