from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakPeriod
from pulsar_sidecar.features.ledger_deletion.workflow.watch_calls import MOST_PERIODS, trend_of

HOUR_MS = 3_600_000


def test_leaks_of_a_day_are_counted_by_the_hour() -> None:
    assert trend_of([]) == ()
    assert trend_of([5 * HOUR_MS + 1, 7 * HOUR_MS, 5 * HOUR_MS]) == (
        LeakPeriod(5 * HOUR_MS, 2),
        LeakPeriod(6 * HOUR_MS, 0),
        LeakPeriod(7 * HOUR_MS, 1),
    )


@given(st.lists(st.integers(0, 2**45), min_size=1, max_size=20))
def test_every_leak_is_in_one_of_few_periods(since_ms: list[int]) -> None:
    trend = trend_of(since_ms)
    assert sum(period.leaks for period in trend) == len(since_ms)
    assert len(trend) <= MOST_PERIODS
    assert trend[0].leaks
    assert trend[-1].leaks
    assert trend[0].from_ms <= min(since_ms)
