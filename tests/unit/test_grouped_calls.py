"""Calls that wait at the same time go out together, and none of them notices what becomes of another."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.runtime import GroupedCalls

WAIT_SECONDS = 20


class Carrier:
    """Carries out groups one at a time; a group waits as long as the test holds it."""

    def __init__(self, answer: Callable[[Sequence[int]], list[int]]) -> None:
        self.groups: list[list[int]] = []
        self.answer = answer
        self.entered = threading.Event()
        self.going_on = threading.Event()
        self.going_on.set()

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.groups.append(list(items))
        self.entered.set()
        assert self.going_on.wait(WAIT_SECONDS)
        return self.answer(items)


def doubled(items: Sequence[int]) -> list[int]:
    return [2 * item for item in items]


def behind_one(carrier: Carrier, items: Sequence[int], *, most: int = 100) -> list[Future[int]]:
    """Calls that all wait behind the call of 0; what became of them, that one first."""
    calls = GroupedCalls[int, int](carrier, lambda item: 1, most)
    carrier.going_on.clear()
    with ThreadPoolExecutor(len(items) + 1) as pool:
        futures = [pool.submit(calls, 0)]
        assert carrier.entered.wait(WAIT_SECONDS)
        futures += [pool.submit(calls, item) for item in items]
        while len(calls._queue) < len(items):
            threading.Event().wait(0.001)
        carrier.going_on.set()
    return futures


def test_single_call_is_sent_immediately() -> None:
    carrier = Carrier(doubled)
    calls = GroupedCalls[int, int](carrier, lambda item: 1, 100)
    assert [calls(3), calls(4)] == [6, 8]
    assert carrier.groups == [[3], [4]]


def test_waiting_calls_are_grouped_and_answered_individually() -> None:
    carrier = Carrier(doubled)
    futures = behind_one(carrier, range(1, 9))
    assert [future.result() for future in futures] == doubled(range(9))
    assert [sorted(group) for group in carrier.groups] == [[0], list(range(1, 9))]


def test_a_group_has_a_bound() -> None:
    carrier = Carrier(doubled)
    behind_one(carrier, range(1, 9), most=3)
    assert [len(group) for group in carrier.groups] == [1, 3, 3, 2]


def test_call_larger_than_the_bound_is_sent_alone() -> None:
    carrier = Carrier(doubled)
    assert GroupedCalls[int, int](carrier, lambda item: 1000, 3)(7) == 14


@pytest.mark.parametrize("error", [TemporaryError("not now"), NotFoundError("not there"), ValueError("a defect")])
def test_refusal_of_one_call_does_not_affect_others(error: Exception) -> None:
    def answer(items: Sequence[int]) -> list[int]:
        if 3 in items:
            raise error
        return doubled(items)

    futures = behind_one(Carrier(answer), range(1, 9))
    for item, future in enumerate(futures):
        if item == 3:
            assert type(future.exception()) is type(error)
        elif isinstance(error, ValueError):
            # A defect is not hidden from the caller on whose thread it came up.
            assert future.exception() in (None, error)
        else:
            assert future.result() == 2 * item


def test_an_unknown_outcome_is_unknown_to_each_of_the_group() -> None:
    def answer(items: Sequence[int]) -> list[int]:
        if 3 in items:
            raise OutcomeUnknownError("the answer was lost")
        return doubled(items)

    carrier = Carrier(answer)
    first, *others = behind_one(carrier, range(1, 9))
    assert first.result() == 0
    assert {type(future.exception()) for future in others} == {OutcomeUnknownError}
    assert len(carrier.groups) == 2, "nothing is sent twice whose outcome is unknown"
