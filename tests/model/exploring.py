"""Explores every reachable state of a small model, breadth first: the first counterexample is a shortest one."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State", bound=Hashable)
Successors = Callable[[State], Iterable[tuple[str, State]]]


@dataclass(frozen=True, slots=True)
class Exploration(Generic[State]):
    """Every reachable state, how it was first reached, where it leads, and every action that was possible anywhere."""

    origins: dict[State, tuple[State, str] | None]
    following: dict[State, tuple[State, ...]]
    labels: frozenset[str]

    @property
    def states(self) -> Iterable[State]:
        return self.origins.keys()

    def ends(self) -> list[State]:
        """Return the states that nothing leads out of."""
        return [state for state, following in self.following.items() if all(other == state for other in following)]

    def path_to(self, state: State) -> list[str]:
        """Return the shortest sequence of actions that leads to a state."""
        labels: list[str] = []
        origin = self.origins[state]
        while origin is not None:
            state, label = origin
            labels.append(label)
            origin = self.origins[state]
        return labels[::-1]

    def without_way_to(self, goals: Iterable[State]) -> set[State]:
        """Return the states from which no goal can still be reached."""
        preceding: dict[State, list[State]] = {}
        for state, following in self.following.items():
            for other in following:
                preceding.setdefault(other, []).append(state)
        good = set(goals)
        queue = deque(good)
        while queue:
            for state in preceding.get(queue.popleft(), ()):
                if state not in good:
                    good.add(state)
                    queue.append(state)
        return set(self.following) - good


def explore(start: State, successors: Successors[State], *, most_states: int = 500_000) -> Exploration[State]:
    """Visit everything that is reachable from the start."""
    origins: dict[State, tuple[State, str] | None] = {start: None}
    following: dict[State, tuple[State, ...]] = {}
    labels: set[str] = set()
    queue = deque([start])
    while queue:
        state = queue.popleft()
        found = list(successors(state))
        following[state] = tuple(other for _, other in found)
        labels.update(label for label, _ in found)
        for label, other in found:
            if other not in origins:
                origins[other] = (state, label)
                queue.append(other)
        if len(origins) > most_states:
            raise AssertionError(f"more than {most_states} states: the model is no longer small")
    return Exploration(origins, following, frozenset(labels))
