"""The brake: what vanished counts for the whole window, and a small cluster has a small limit."""

import pytest
from pulsar_sidecar.ledger_deletion.watch.brake import WINDOW_MS, Brake


@pytest.mark.parametrize(
    ("most", "references", "limit"),
    [
        (1_000, 0, 50),
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
def test_the_limit_is_one_percent_but_fifty_at_least_and_what_was_set_at_most(
    most: int, references: int, limit: int
) -> None:
    assert Brake(most).limit(references) == limit


@pytest.mark.parametrize(("vanished", "brakes"), [(0, False), (50, False), (51, True), (5_000, True)])
def test_it_brakes_beyond_the_limit(vanished: int, brakes: bool) -> None:
    brake = Brake(1_000)
    brake.note(0, vanished)
    assert (brake.reason(100) is not None) == brakes
    assert brake.vanished() == vanished


def test_it_says_how_many_vanished_and_how_to_go_on() -> None:
    brake = Brake(1_000)
    brake.note(0, 51)
    assert brake.reason(0) == (
        "51 references vanished within 10 minutes while their ledgers stayed, and 50 is the limit; find out why (a "
        "restored metadata store, a migration?), then: pulsar-sidecar ledger-deletion watch resume"
    )


def test_what_vanished_is_a_part_of_all_references() -> None:
    """9,000 that are left and 100 that vanished were 9,100: 91 are the limit."""
    brake = Brake(1_000)
    brake.note(0, 91)
    assert brake.reason(9_009) is None
    brake.note(0, 1)
    assert brake.reason(9_008) is not None


@pytest.mark.parametrize(("later_ms", "counts"), [(0, 60), (1, 60), (WINDOW_MS - 1, 60), (WINDOW_MS, 30)])
def test_what_vanished_counts_for_the_window_and_no_longer(later_ms: int, counts: int) -> None:
    brake = Brake(1_000)
    brake.note(7, 30)
    brake.note(7 + later_ms, 30)
    assert brake.vanished() == counts
    assert (brake.reason(0) is not None) == (counts == 60)


def test_time_alone_lets_it_forget() -> None:
    brake = Brake(1_000)
    for second in range(60):
        brake.note(1_000 * second, 1)
    assert brake.vanished() == 60
    brake.note(WINDOW_MS + 9_000, 0)
    assert brake.vanished() == 50
    brake.note(WINDOW_MS + 59_000, 0)
    assert brake.vanished() == 0


def test_released_it_counts_from_nothing() -> None:
    brake = Brake(1_000)
    brake.note(0, 500)
    brake.release()
    assert (brake.vanished(), brake.reason(0)) == (0, None)
    brake.note(1, 51)
    assert brake.reason(0) is not None


def test_each_brake_has_its_own_count() -> None:
    Brake(1).note(0, 5)
    assert Brake(1).vanished() == 0
