"""``pulsar-sidecar ledger-deletion reclaimed`` and ``status``, as a person runs them, and their routes."""

import json

from tests.fakes.deletion_service import RECLAIM, FakeDeletionService
from tests.unit.cli.running import Terminal

BOOKIES = [
    "1 of 3 bookies have collected the last 2 ledgers",
    "  bookie-1:3181: collected; its files have shrunk by 4.9 KiB since 2023-11-14T22:13:20Z",
    "  bookie-2:3181: 2 ledgers, 600 B, not collected; it is unknown by how much its files have shrunk",
    "    no HTTP service",
    "  bookie-3:3181: unknown; it is unknown by how much its files have shrunk",
    "    no answer",
]
DELETED = "deleted in the last 4 hours: 2 ledgers, 1000 B (one copy) and 1 of unknown length; the last"


def test_the_command_says_who_has_collected(shell: Terminal) -> None:
    first, *others = shell.run("ledger-deletion", "reclaimed", "--hours", "4").out.splitlines()
    assert first.startswith(DELETED)
    assert others == BOOKIES
    none = shell.run("ledger-deletion", "reclaimed", "--hours", "2")
    assert none.out == "no recorded ledger was deleted in the last 2 hours\n"
    assert shell.run("ledger-deletion", "reclaimed", "--hours", "1e9").code == 1


def test_the_status_has_the_last_reading(shell: Terminal, service: FakeDeletionService) -> None:
    before = shell.run("ledger-deletion", "status")
    service.last_reclaim = RECLAIM
    ran = shell.run("ledger-deletion", "status")
    document = json.loads(shell.run("--output-format", "json", "ledger-deletion", "status").out)
    assert "bookies" not in before.out + before.err
    assert "bookie-2:3181" in ran.out
    assert ran.err.startswith(DELETED)
    assert ran.err.splitlines()[1] == BOOKIES[0]
    assert document["reclaimed"]["collectedBookies"] == 1
