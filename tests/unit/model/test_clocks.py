"""Waiting on the machine's clock, with a signal that ends it and without."""

import threading

from pulsar_sidecar.model.clocks import SystemClock


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
