"""Waiting on the machine's clock, with a signal that ends it and without; and keeping to a rate."""

import threading

import pytest
from pulsar_sidecar.model.clocks import Pace, SystemClock

from tests.fakes.clock import FakeClock


def test_a_wait_without_a_signal_ends_with_its_time() -> None:
    clock = SystemClock()
    started = clock.monotonic_seconds()
    assert clock.wait_seconds(0.01) is False
    assert clock.monotonic_seconds() - started >= 0.01
    assert clock.wait_seconds(-1) is False


def test_a_signal_ends_a_wait() -> None:
    stop = threading.Event()
    assert SystemClock().wait_seconds(0.0, stop) is False
    stop.set()
    assert SystemClock().wait_seconds(60, stop) is True


def test_pace_does_not_catch_up_after_a_long_stall() -> None:
    clock = FakeClock()
    pace = Pace(clock, 100)
    pace.wait_after(10)
    clock.advance_ms(60_000)
    resumed_at = clock.monotonic_seconds()
    for _ in range(50):
        pace.wait_after(10)
    assert clock.monotonic_seconds() - resumed_at == pytest.approx(4, abs=0.1), "one second's worth, not 60"


def test_pace_catches_up_after_a_short_delay() -> None:
    clock = FakeClock()
    pace = Pace(clock, 100)
    for number in range(100):
        clock.advance_ms(500 if number == 0 else 0)
        pace.wait_after(10)
    assert clock.monotonic_seconds() == pytest.approx(10.5, abs=0.1)


def test_pace_has_no_limit_in_a_hurry_and_does_not_make_up_for_it() -> None:
    clock, hurry = FakeClock(), threading.Event()
    pace = Pace(clock, 100, hurry)
    assert pace.batch_size(1_000) == 10
    hurry.set()
    assert pace.batch_size(1_000) == 1_000
    pace.wait_after(1_000_000)
    assert clock.monotonic_seconds() == 0
    hurry.clear()
    pace.wait_after(10)
    pace.wait_after(10)
    assert clock.monotonic_seconds() == pytest.approx(0.2)
