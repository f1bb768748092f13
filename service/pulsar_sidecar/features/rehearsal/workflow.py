"""Rehearsal of a broker's death, within a bounded time.

Invariant: a topic whose look-ups failed, or did not end in time, is not known, never harmless.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pulsar_sidecar.features.rehearsal.decide import Look, by_weight, rehearsal_of
from pulsar_sidecar.features.rehearsal.ports import BrokerContents, Indexing, TopicLookups
from pulsar_sidecar.features.rehearsal.requests import Bounds
from pulsar_sidecar.features.rehearsal.results import Rehearsal, RehearsedDeletion
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, UnreachableError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Rehearsals:
    """Rehearsals of brokers' deaths; they change nothing. Thread-safe.

    Attributes:
        deletions: two-phase deletions of topics, or of their namespaces; None where they are off.
        threads: threads of the look-ups, which all rehearsals share.
    """

    contents: Callable[[str], BrokerContents]
    lookups: TopicLookups
    deletions: Callable[[Collection[TopicName]], Sequence[RehearsedDeletion] | None]
    clock: Clock
    threads: Executor

    def rehearse(self, broker: str, bounds: Bounds) -> Rehearsal:
        """Return the consequences of a broker's death now.

        Raises:
            NotFoundError: there is no such broker.
            UnreachableError: the broker does not respond, so its memory is unknown.
        """
        as_of_ms, ends = self.clock.now_ms(), self.clock.monotonic_seconds() + bounds.seconds
        try:
            contents = self.contents(broker)
        except UnreachableError as error:
            raise UnreachableError(f"{error}; {_UNANSWERED}") from error
        chosen = by_weight(contents.topics)[: bounds.topics]
        running = {self.threads.submit(partial(self._look, contents.broker, topic)): topic for topic in chosen}
        deletions = self._deletions(contents.topics)
        done, late = wait(running, max(0.0, ends - self.clock.monotonic_seconds()))
        for look in late:
            look.cancel()
        in_time = f"it did not end within {bounds.seconds:g} s; give it more time, or look at fewer topics"
        looks = {topic: look.result() if look in done else Look(failures=(in_time,)) for look, topic in running.items()}
        return rehearsal_of(contents, looks, deletions, self.lookups.assumptions(), as_of_ms, bounds.rows)

    def _look(self, broker: str, topic: TopicName) -> Look:
        failures: list[str] = []

        def attempt(what: str, ask: Callable[[], _Found]) -> _Found | None:
            try:
                return ask()
            except SidecarError as error:
                failures.append(f"{what}: {error}")
                return None

        subscriptions = attempt("subscriptions", partial(self.lookups.subscriptions, topic, broker))
        replay = attempt("deduplication", partial(self.lookups.replay, topic))
        delayed = [each.subscription for each in subscriptions or () if each.delayed]
        indexing = None if subscriptions is None else Indexing()
        if delayed:
            indexing = attempt("delayed index", partial(self.lookups.indexing, topic, delayed))
        return Look(subscriptions, replay, indexing, tuple(failures))

    def _deletions(self, topics: Collection[TopicName]) -> Sequence[RehearsedDeletion] | Unreadable | None:
        try:
            return self.deletions(topics)
        except SidecarError as error:
            return Unreadable(str(error))


_UNANSWERED = (
    "what it has only in memory cannot be known; what is stored can: pulsar-sidecar subscriptions fullest, "
    "pulsar-sidecar deduplication forecast, pulsar-sidecar delayed-index forecast"
)
