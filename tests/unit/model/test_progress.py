"""Long work is silent for two seconds, and then reports now and then."""

from pulsar_sidecar.model.progress import LongWork

from tests.fakes.clock import FakeClock


def test_work_that_takes_longer_than_two_seconds_reports() -> None:
    clock, reports = FakeClock(), list[tuple[str, int, int]]()
    work = LongWork("reading, entries", 40, lambda *report: reports.append(report), clock)
    for done in range(50):
        work.has_done(done)
        clock.advance_ms(100)
    assert reports == [("reading, entries", done, max(done, 40)) for done in range(20, 50, 5)]


def test_short_work_is_silent() -> None:
    clock, reports = FakeClock(), list[tuple[str, int, int]]()
    work = LongWork("reading, entries", 10, lambda *report: reports.append(report), clock)
    for done in range(19):
        work.has_done(done)
        clock.advance_ms(100)
    assert reports == []
