"""A soak calls flat what stays, and nothing that keeps growing."""

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.soak.judging import Series, judge, series_of
from tests.soak.samples import ProcessSample, Sample, look_at_process, read_samples

_HOUR = 3_600.0
_LOOKS = 720


def _course(value_at_hour: Callable[[float], float], what: str = "anonymous_mb") -> Series:
    hours = [2 * number / _LOOKS for number in range(_LOOKS)]
    return Series("a sidecar", what, [(hour * _HOUR, value_at_hour(hour)) for hour in hours])


_COURSES: Mapping[str, tuple[Callable[[float], float], bool]] = {
    "stays": (lambda hour: 200.0, True),
    "fills its caches": (lambda hour: 200 + 40 * (1 - math.exp(-3 * hour)), True),
    "goes up and down": (lambda hour: 200 + 5 * math.sin(40 * hour), True),
    "shrinks": (lambda hour: 240 - 20 * hour, True),
    "grows": (lambda hour: 200 + 60 * hour, False),
    "begins to grow late": (lambda hour: 200 + 60 * max(0.0, hour - 1), False),
}


@pytest.mark.parametrize("name", _COURSES)
def test_flat_and_growing_courses_are_distinguished(name: str) -> None:
    value_at_hour, flat = _COURSES[name]
    assert judge(_course(value_at_hour)).is_flat is flat


def test_the_growth_is_that_of_the_second_half() -> None:
    course = judge(_course(lambda hour: 100.0 * min(1.0, hour) + 60.0 * max(0.0, hour - 1)))
    assert course.per_hour == pytest.approx(60, rel=0.01)
    assert course.highest == pytest.approx(160, rel=0.01)


def test_a_few_descriptors_more_are_room() -> None:
    assert judge(_course(lambda hour: 60 + 5 * (hour > 1.5), "descriptors")).is_flat
    assert not judge(_course(lambda hour: 60 + 20 * (hour > 1.5), "descriptors")).is_flat


def test_too_few_looks_are_no_judgement() -> None:
    with pytest.raises(ValueError, match="too few"):
        judge(Series("a sidecar", "threads", [(0.0, 1.0), (10.0, 1.0)]))


def test_looks_are_read_back_and_gaps_left_out(tmp_path: Path) -> None:
    there = Sample(0.0, {"one": ProcessSample(7, 100.5, 60.5, 40, 20)}, {"nodes": 5, "watches": 6, "topics": 7})
    gone = Sample(10.0, {}, {})
    file = tmp_path / "looks.jsonl"
    file.write_text(f"{there.line()}\n{gone.line()}\n")
    assert read_samples(file) == [there, gone]
    found = {(each.of, each.what): each.points for each in series_of([there, gone], ["one"])}
    assert found["one", "descriptors"] == [(0.0, 40)]
    assert found["cluster", "topics"] == [(0.0, 7)]


def test_a_process_is_looked_at_while_it_runs() -> None:
    own = look_at_process(os.getpid())
    assert own is not None
    assert own.resident_mb > own.anonymous_mb > 1
    assert own.threads >= 1
    assert look_at_process(2**22 + 1) is None  # above the largest id that there is
