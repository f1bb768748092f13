from pulsar_sidecar.features.ledger_deletion.second_phase.throughput import Throughput

from tests.fakes.clock import FakeClock


def test_the_rate_is_that_of_the_last_minute() -> None:
    clock, total = FakeClock(), [0]
    throughput = Throughput(clock, lambda: total[0])
    assert throughput.per_second() is None
    for _ in range(30):
        clock.advance_ms(4_000)
        total[0] += 400
        throughput.per_second()
    assert throughput.per_second() == 100
    for _ in range(20):
        clock.advance_ms(4_000)
        throughput.per_second()
    assert throughput.per_second() == 0


def test_a_rate_over_hours_is_not_that_of_now() -> None:
    clock, total = FakeClock(), [0]
    throughput = Throughput(clock, lambda: total[0])
    throughput.per_second()
    clock.advance_ms(3_600_000)
    total[0] = 7_200
    assert throughput.per_second() is None
    clock.advance_ms(1_000)
    assert throughput.per_second() == 0
