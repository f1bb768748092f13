"""Space that bookies have reclaimed from deleted ledgers: counted ledgers, queried bookies, unknown values."""

from collections.abc import Mapping, Sequence

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import Collected, ReclaimedSpace
from pulsar_sidecar.features.ledger_deletion.results import BookieReclaim
from pulsar_sidecar.features.ledger_deletion.workflow.reclaiming import Reclaiming
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path

from tests.fakes.bookkeeper import data_custom_metadata, ledger_metadata_bytes
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.orphans import about, orphan
from tests.unit.ledger_deletion.sidecars import NotStopped, Sidecar, send

FIRST, SECOND, THIRD = (BookieId(f"bookie-{number}:3181") for number in (1, 2, 3))
SPACE = ReclaimedSpace(5_000, 1_700_000_000_000)


class FakeCollections:
    """`BookieCollections`: the second bookie has collected nothing, and the third one does not respond."""

    def __init__(self) -> None:
        self.asked: list[LedgerId] = []

    def collected(self, ledgers: Sequence[LedgerId]) -> Mapping[BookieId, Collected]:
        self.asked = list(ledgers)
        silent = Unreadable("no answer")
        return {
            FIRST: Collected({}, SPACE),
            SECOND: Collected(dict.fromkeys(ledgers, 300), Unreadable("no HTTP service")),
            THIRD: Collected(silent, silent),
        }


@pytest.fixture
def bookies() -> FakeCollections:
    return FakeCollections()


@pytest.fixture
def reclaiming(fake_pulsar: FakePulsar, bookies: FakeCollections) -> Reclaiming:
    return Reclaiming(fake_pulsar.topics, fake_pulsar.store, bookies, fake_pulsar.clock, DEFAULT_LEDGERS_ROOT)


def deleted(fake_pulsar: FakePulsar, topic: TopicName) -> tuple[LedgerId, LedgerId]:
    """Have a sidecar delete one ledger, and find another one deleted."""
    ledger_id, gone = orphan(fake_pulsar, topic), LedgerId(777)
    send(fake_pulsar, about(topic, ledger_id, length_bytes=1_000), about(topic, gone))
    Sidecar(fake_pulsar).process()
    return ledger_id, gone


def test_what_sidecars_and_brokers_deleted_counts_and_each_bookie_is_asked(
    fake_pulsar: FakePulsar, topic: TopicName, reclaiming: Reclaiming, bookies: FakeCollections
) -> None:
    ids = deleted(fake_pulsar, topic)
    found = reclaiming.reclaimed(24, NotStopped())
    assert (found.ledgers, found.deleted_bytes, found.unmeasured_ledgers) == (2, 1_000, 1)
    assert (found.asked_ledgers, found.collected_bookies) == (2, 1)
    assert sorted(bookies.asked) == sorted(ids)
    assert found.bookies == (
        BookieReclaim(FIRST, 0, 0, SPACE.size_bytes, SPACE.since_ms, ()),
        BookieReclaim(SECOND, 2, 600, None, None, ("no HTTP service",)),
        BookieReclaim(THIRD, None, None, None, None, ("no answer", "no answer")),
    )


def test_earlier_deletions_and_restored_ledgers_do_not_count(
    fake_pulsar: FakePulsar, topic: TopicName, reclaiming: Reclaiming
) -> None:
    ledger_id, _ = deleted(fake_pulsar, topic)
    data = ledger_metadata_bytes(custom_metadata=data_custom_metadata(topic.managed_ledger_name))
    fake_pulsar.store.put(ledger_path(ledger_id), data)
    assert reclaiming.reclaimed(24, NotStopped()).ledgers == 1
    fake_pulsar.clock.advance_ms(3_600_000)
    found = reclaiming.reclaimed(0.5, NotStopped())
    assert (found.ledgers, found.last_deleted_ms, found.bookies) == (0, None, ())


def test_of_too_many_deletions_the_last_count_since_the_first_of_them(
    fake_pulsar: FakePulsar, topic: TopicName, reclaiming: Reclaiming, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted(fake_pulsar, topic)
    monkeypatch.setattr("pulsar_sidecar.features.ledger_deletion.workflow.reclaiming.COUNTED", 1)
    found = reclaiming.reclaimed(24, NotStopped())
    assert (found.ledgers, found.since_ms) == (1, found.last_deleted_ms)


def test_the_status_keeps_the_last_reading_while_the_topic_cannot_be_read(
    fake_pulsar: FakePulsar, reclaiming: Reclaiming
) -> None:
    waits = []

    class StopsLater(NotStopped):
        def is_set(self) -> bool:
            return len(waits) == 2

    def wait(seconds: float, _stop: object) -> None:
        waits.append(seconds)
        fake_pulsar.topics.hooks.fail_next("outcomes_since", TemporaryError("no broker answers"))

    fake_pulsar.clock.wait_seconds = wait
    reclaiming.run(StopsLater())
    assert (waits, reclaiming.last.as_of_ms) == ([900.0, 900.0], fake_pulsar.clock.now_ms())
