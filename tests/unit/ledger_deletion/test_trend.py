from pulsar_sidecar.features.ledger_deletion.workflow.trend import Throughput, Trend, TrendPoint
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.clock import FakeClock


class Work:
    """Inputs of a trend; ``pending`` None cannot be read."""

    def __init__(self) -> None:
        self.clock, self.pending, self.deleted = FakeClock(), None, 0.0
        self.trend = Trend(self.clock, self._pending, lambda: self.deleted, lambda: 3)

    def minute(self, pending: int | None, deleted: float) -> None:
        self.pending, self.deleted = pending, self.deleted + deleted
        self.trend.take()
        self.clock.advance_ms(60_000)

    def _pending(self) -> int:
        if self.pending is None:
            raise TemporaryError("no broker answers")
        return self.pending


def test_an_hour_is_kept_and_no_more() -> None:
    work = Work()
    for minute in range(100):
        work.minute(1_000 - minute, 30.0)
    points = work.trend.read().points
    assert (len(points), points[0].pending, points[-1].pending) == (61, 961, 901)
    assert points[-1] == TrendPoint(work.clock.now_ms() - 60_000, 901, 0.5, 3)


def test_the_time_left_is_by_the_last_ten_minutes() -> None:
    work = Work()
    assert work.trend.read().seconds_left is None
    for minute in range(20):
        work.minute(1_000 if minute < 9 else 1_090 - 10 * minute, 0.0)
    assert work.trend.read().seconds_left == 900 * 6
    work.minute(0, 0.0)
    assert work.trend.read().seconds_left == 0.0


def test_growing_or_unread_backlog_has_no_estimate() -> None:
    work = Work()
    for pending in (5, None, 6):
        work.minute(pending, 0.0)
    assert [point.pending for point in work.trend.read().points] == [5, None, 6]
    assert work.trend.read().seconds_left is None


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
