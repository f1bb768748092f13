"""A shadow's deletion, interrupted at every call, and brokers that load the shadow at every moment.

Invariant: no ledger of the source is ever deleted, and in the end the shadow's nodes are gone.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import NotFoundError, OutcomeUnknownError, TemporaryError

from tests.unit.ledger_deletion.shadow_settings import Calls, Interruption, Setting, setting
from tests.unit.ledger_deletion.sidecars import Crash

KINDS = [(None, False), (None, True), (2, False), (2, True)]


def number_of_calls(partitions: int | None, listed: bool) -> int:
    calls = Calls()
    made = setting(partitions, listed=listed)
    made.delete(made.sidecar(calls))
    return len(calls.seen)


@pytest.mark.parametrize("interruption", Interruption)
@pytest.mark.parametrize(("partitions", "listed"), KINDS)
def test_interrupted_at_every_call(partitions: int | None, listed: bool, interruption: Interruption) -> None:
    for at in range(number_of_calls(partitions, listed)):
        made = setting(partitions, listed=listed)
        with suppress(Crash):
            made.delete(made.sidecar(Calls(at, interruption)))
        made.delete()
        made.brokers.replicate()
        made.check()


@pytest.mark.parametrize(("partitions", "listed"), KINDS)
def test_killed_again_and_again(partitions: int | None, listed: bool) -> None:
    made = setting(partitions, listed=listed)
    for at in range(number_of_calls(partitions, listed) * 2):
        with suppress(Crash, TemporaryError, OutcomeUnknownError):
            made.advance(made.sidecar(Calls(at % 13, Interruption.KILLED_AFTER)))
    made.finish()


@dataclass
class Once:
    """Does something before one call of a port, counted from 0."""

    at: int
    action: Callable[[], object]
    calls: int = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls - 1 == self.at:
            self.action()


@pytest.mark.parametrize("steps", [1, 3, 7])
@pytest.mark.parametrize(("partitions", "listed"), KINDS)
def test_another_sidecar_goes_on_before_any_call(partitions: int | None, listed: bool, steps: int) -> None:
    def check(at: int) -> None:
        made = setting(partitions, listed=listed)
        other = made.sidecar()

        def go_on() -> None:
            for _ in range(steps):
                with suppress(TemporaryError):
                    made.advance(other)

        first = made.sidecar(Calls(meanwhile=Once(at, go_on)))
        with suppress(NotFoundError):  # all of it was done before the first had looked
            made.delete(first)
        made.finish(first)

    for at in range(number_of_calls(partitions, listed)):
        check(at)


@pytest.mark.parametrize("partitions", [None, 2])
def test_a_shadow_created_again_before_any_call_keeps_its_source(partitions: int | None) -> None:
    """Another sidecar deletes it, and an operator creates it again: no call but the deletion itself comes too late."""

    def check(at: int) -> None:
        made = setting(partitions)

        def delete_and_create_again() -> None:
            made.delete()
            made.brokers.kept_forever.add(made.shadow)
            made.brokers.shadow(str(made.shadow), made.source, partitions=partitions)

        calls = Calls(meanwhile=Once(at, delete_and_create_again))
        sidecar = made.sidecar(calls)
        for _ in range(8):
            with suppress(TemporaryError):
                made.advance(sidecar)
        assert made.brokers.destroyed == set() or calls.seen[at] == "delete_topic"

    for at in range(number_of_calls(partitions, listed=False)):
        check(at)


class Loads:
    """Begins and ends loads of the shadow's topics as numbered, one before each call of a port."""

    def __init__(self, made: Setting, numbers: list[int]) -> None:
        self._made = made
        self._numbers = iter(numbers)

    def __call__(self) -> None:
        number = next(self._numbers, 0)
        shadow = self._made.shadows[number // 4 % len(self._made.shadows)]
        if number % 4 in (1, 3):
            self._made.brokers.begin_load(shadow)
        if number % 4 in (2, 3):
            self._made.brokers.end_load(shadow)
        self._made.brokers.replicate()


@given(
    kind=st.sampled_from(KINDS),
    numbers=st.lists(st.integers(0, 7), max_size=80),
    at=st.integers(0, 80),
    interruption=st.sampled_from(Interruption),
)
def test_brokers_load_it_at_any_moment(
    kind: tuple[int | None, bool], numbers: list[int], at: int, interruption: Interruption
) -> None:
    partitions, listed = kind
    made = setting(partitions, listed=listed)
    # Until it is protected any load may destroy the source, which the sidecar cannot prevent.
    made.brokers.kept_forever.add(made.shadow)
    loads = Loads(made, numbers)
    with suppress(Crash):
        made.delete(made.sidecar(Calls(at, interruption, meanwhile=loads)))
    made.finish(made.sidecar(Calls(meanwhile=loads)))
