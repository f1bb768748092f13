"""``pulsar-sidecar ledger-deletion reclaimed``, as a person runs it, and the route that it asks."""

from pulsar_sidecar.features.ledger_deletion.http.reclaim import reclaim_router
from pulsar_sidecar.features.ledger_deletion.results import BookieReclaim, Reclaim

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import served

BOOKIES = (
    BookieReclaim("bookie-1:3181", 0, 0, 5_000, 1_700_000_000_000, ()),
    BookieReclaim("bookie-2:3181", 2, 600, None, None, ("no HTTP service",)),
    BookieReclaim("bookie-3:3181", None, None, None, None, ("no answer",)),
)


class FakeReclaiming:
    """`Reclaiming` with deletions that are between 2 and 4 hours old."""

    def reclaimed(self, hours: float) -> Reclaim:
        if hours < 4:
            return Reclaim(0, 0, 0, 0, None, 0, 0, ())
        return Reclaim(0, 2, 1, 1_000, 1_700_000_000_000, 2, 1, BOOKIES)


def test_the_command_says_who_has_collected(terminal: Terminal) -> None:
    with served(FakeDeletionService(), routers=[reclaim_router(FakeReclaiming())]) as server:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", server.url)
        ran = terminal.run("ledger-deletion", "reclaimed", "--hours", "4")
        none = terminal.run("ledger-deletion", "reclaimed", "--hours", "2")
        wrong = terminal.run("ledger-deletion", "reclaimed", "--hours", "1e9")
    first, *others = ran.out.splitlines()
    assert first.startswith(
        "deleted in the last 4 hours: 2 ledgers, 1000 B (one copy) and 1 of unknown length; the last"
    )
    assert others == [
        "1 of 3 bookies have collected the last 2 ledgers",
        "  bookie-1:3181: collected; its files have shrunk by 4.9 KiB since 2023-11-14T22:13:20Z",
        "  bookie-2:3181: 2 ledgers, 600 B, not collected; it is unknown by how much its files have shrunk",
        "    no HTTP service",
        "  bookie-3:3181: unknown; it is unknown by how much its files have shrunk",
        "    no answer",
    ]
    assert none.out == "no recorded ledger was deleted in the last 2 hours\n"
    assert wrong.code == 1
