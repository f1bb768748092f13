"""The brake: vanished references count for the whole window, and a small cluster has a small limit."""

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.brake import WINDOW_MS, Brake


@pytest.mark.parametrize(
    ("most", "references", "limit"),
    [
        (1_000, 0, 9),
        (1_000, 13, 9),
        (1_000, 14, 10),
        (1_000, 66, 49),
        (1_000, 67, 50),
        (1_000, 4_999, 50),
        (1_000, 5_000, 50),
        (1_000, 5_100, 51),
        (1_000, 99_900, 999),
        (1_000, 100_000, 1_000),
        (1_000, 10_000_000, 1_000),
        (10, 10_000_000, 10),
        (0, 10_000_000, 0),
    ],
)
def test_the_limit_is_one_percent_but_fifty_at_least_a_part_of_few_and_what_was_set_at_most(
    most: int, references: int, limit: int
) -> None:
    assert Brake(most).limit(references) == limit


def note(brake: Brake, at_ms: int, count: int) -> None:
    for _ in range(count):
        brake.note(at_ms)


@pytest.mark.parametrize(("vanished", "brakes"), [(0, False), (50, False), (51, True), (5_000, True)])
def test_brake_engages_beyond_the_limit(vanished: int, brakes: bool) -> None:
    brake = Brake(1_000)
    note(brake, 1, vanished)
    assert (brake.reason(1, 100) is not None) == brakes
    assert brake.vanished() == vanished


def test_brake_reports_the_count_and_the_remedy() -> None:
    brake = Brake(1_000)
    note(brake, 1, 51)
    assert brake.reason(1, 49) == (
        "51 references vanished within 10 minutes while their ledgers stayed, and 50 is the limit; find out why (a "
        "restored metadata store, a migration?), then: pulsar-sidecar ledger-deletion watch resume"
    )


def test_limit_is_a_share_of_all_references() -> None:
    """9,000 that are left and 100 that vanished were 9,100: 91 are the limit."""
    brake = Brake(1_000)
    note(brake, 1, 91)
    assert brake.reason(1, 9_009) is None
    brake.note(1)
    assert brake.reason(1, 9_008) is not None


@pytest.mark.parametrize(("all_of", "brakes"), [(9, False), (10, True), (40, True)])
def test_a_small_cluster_that_loses_everything_brakes(all_of: int, brakes: bool) -> None:
    brake = Brake(1_000)
    note(brake, 1, all_of)
    assert (brake.reason(1, 0) is not None) == brakes


@pytest.mark.parametrize(("later_ms", "counts"), [(0, 60), (1, 60), (WINDOW_MS - 1, 60), (WINDOW_MS, 30)])
def test_vanished_references_count_within_the_window(later_ms: int, counts: int) -> None:
    brake = Brake(1_000)
    note(brake, 7, 30)
    note(brake, 7 + later_ms, 30)
    assert brake.vanished() == counts
    assert (brake.reason(7 + later_ms, 1_000) is not None) == (counts == 60)


def test_time_alone_lets_it_forget() -> None:
    brake = Brake(1_000)
    for second in range(1, 61):
        brake.note(1_000 * second)
    assert brake.vanished() == 60
    brake.accept()
    assert brake.reason(WINDOW_MS + 10_000, 1_000) is not None, "nobody had asked before"
    brake.accept()
    assert brake.reason(WINDOW_MS + 10_000, 1_000) is None
    assert brake.vanished() == 50
    brake.reason(WINDOW_MS + 60_000, 1_000)
    assert brake.vanished() == 0


def test_exceeded_limit_is_reported_after_the_window() -> None:
    """51 within a window, and the window was over when a sidecar led again."""
    brake = Brake(1_000)
    note(brake, 1, 51)
    for later_ms in (1, WINDOW_MS, 5 * WINDOW_MS):
        assert "51 references" in (brake.reason(1 + later_ms, 1_000) or "")
    brake.note(6 * WINDOW_MS)
    assert "51 references" in (brake.reason(6 * WINDOW_MS, 1_000) or ""), "one that vanished later hides them"
    brake.accept()
    assert (brake.vanished(), brake.reason(6 * WINDOW_MS, 1_000)) == (1, None)


def test_references_vanished_before_resuming_do_not_count() -> None:
    brake = Brake(1_000)
    note(brake, 5, 500)
    note(brake, 6, 7)
    brake.release(5)
    assert (brake.vanished(), brake.reason(6, 1_000)) == (7, None)
    note(brake, 5, 51)
    assert (brake.vanished(), brake.reason(6, 1_000)) == (7, None)
    note(brake, 6, 44)
    assert brake.reason(6, 1_000) is not None
