"""Load during faults: topics deleted through sidecars and records appended, by callers who retry.

A caller sends a request until a final response, as Pulsar's own callers do, so whatever was accepted is known
when the load has ended. Among the records are some of ledgers that are referenced: those must not go.
"""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import requests
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import TopicName

from tests.cluster.background import in_parallel
from tests.cluster.deletion import Scene
from tests.cluster.patience import PATIENCE_SECONDS, until
from tests.cluster.sidecars import BASE, SidecarClient
from tests.cluster.topics import record

_Item = TypeVar("_Item")

_THREADS = 9
_APPENDERS = 3
_LEDGERS = 3
_SPREAD_SECONDS = 2.0
"""Within so long the callers begin."""

_TRY_AGAIN_SECONDS = 0.25
_REQUEST_SECONDS = 30
_DONE = frozenset({204, 404})
"""Final responses to a topic's deletion; a topic that an earlier request deleted is not found."""

_IN_USE = frozenset({"ledger-still-in-use"})


def pause(seconds: float) -> None:
    """Let a fault last; nothing that a test demands depends on how long this takes."""
    threading.Event().wait(seconds)


@dataclass(slots=True)
class Answers:
    """Responses to the callers, counted by kind for the report."""

    counts: dict[str, int] = field(default_factory=dict)
    unforeseen: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, answer: str) -> None:
        with self._lock:
            self.counts[answer] = self.counts.get(answer, 0) + 1

    def defect(self, answer: requests.Response) -> None:
        with self._lock:
            self.unforeseen.append(f"{answer.request.method} {answer.request.url}: {answer.text[:300]}")


class Load:
    """A round's work: topics to delete, topics to keep, and leaked ledgers."""

    def __init__(self, scene: Scene, sidecars: Sequence[SidecarClient], rng: random.Random, *, topics: int = 6) -> None:
        self._scene = scene
        self._sidecars = list(sidecars)
        self._rng = rng
        self._ended = threading.Event()
        self.answers = Answers()
        self.doomed = [scene.topic(f"doomed-{number}") for number in range(topics)]
        self._begins = {topic: rng.uniform(0, _SPREAD_SECONDS) for topic in self.doomed}
        self.kept = [scene.topic(f"kept-{number}") for number in range(2)]
        self._left_behind = [scene.topic(f"left-{number}") for number in range(2)]
        self._written: dict[TopicName, list[bytes]] = {}
        self.records: list[dict[str, Any]] = []
        self._before: frozenset[LedgerId] = frozenset()
        self._data: frozenset[LedgerId] = frozenset()

    @property
    def topics(self) -> list[TopicName]:
        return [*self.doomed, *self.kept]

    def use(self, sidecars: Sequence[SidecarClient]) -> None:
        """Turn to other sidecars from now on."""
        self._sidecars = list(sidecars)

    def prepare(self) -> None:
        """Fill the topics, while the cluster is whole."""
        orphans = in_parallel(lambda topic: self._scene.orphans(topic, 2 * _LEDGERS), self._left_behind, _THREADS)
        in_parallel(self._fill, self.topics, _THREADS)
        ledgers = self._scene.workload.ledgers
        before = [ledgers(topic) for topic in self.doomed]
        self._before = frozenset().union(*(found.all for found in before))
        self._data = frozenset().union(*(found.data for found in before))
        for topic in self.kept:
            self._scene.oracles.keeps(topic, self._written[topic])
        in_use = [ledger for topic in self.kept for ledger in self._records_of_data(topic)]
        self.records = [*(each for found in orphans for each in found.records()), *in_use]
        self._rng.shuffle(self.records)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the load while the body runs, and until every request has a final response."""
        with ThreadPoolExecutor(_THREADS) as pool:
            futures: list[Future[None]] = [pool.submit(self._delete, topic) for topic in self.doomed]
            futures += [pool.submit(self._append, batch) for batch in _parts(self.records, _APPENDERS)]
            try:
                yield
                for future in futures:
                    future.result(PATIENCE_SECONDS)
            finally:
                self._ended.set()

    def check(self) -> None:
        """Demand that the topics are gone with all their ledgers, and that records of other ledgers had no effect."""
        workload = self._scene.workload
        # A broker that closes a topic deletes its cursors' ledgers itself, so that a sidecar may never see them.
        accepted = {each["ledgerId"] for each in self.records} | self._data
        self._scene.oracles.add_accepted(accepted)
        self._scene.oracles.wait_for_finals(accepted)
        for topic in self.doomed:
            assert not workload.ledgers(topic).all, f"{topic} is still there"
        assert not workload.existing(self._before), "ledgers of deleted topics are left"
        for topic in self.kept:
            data = until(partial(self._all_existing, topic), f"every ledger of {topic} exists")
            reasons = {final.reason for ledger_id in data for final in self._scene.oracles.finals(ledger_id)}
            assert reasons <= _IN_USE, f"records of referenced ledgers of {topic} ended otherwise: {reasons}"
        assert not self.answers.unforeseen, self.answers.unforeseen

    def _all_existing(self, topic: TopicName) -> frozenset[LedgerId]:
        """Return the ledgers of its list, none if one is missing: a broker that loads it drops an empty last one."""
        workload = self._scene.workload
        data = workload.ledgers(topic).data
        return data if workload.existing(data) == data else frozenset()

    # --- callers ---------------------------------------------------------------------------------------------------

    def _delete(self, topic: TopicName) -> None:
        self._ended.wait(self._begins[topic])
        path = f"/admin/v2/{self._scene.workload.of_topic(topic)}"

        def ask() -> bool:
            answer = self._ask("DELETE", path, force="true")
            return answer is not None and answer.status_code in _DONE

        self._until_answered(ask, f"{topic} is deleted")

    def _append(self, records: Sequence[dict[str, Any]]) -> None:
        left = list(records)

        def ask() -> bool:
            answer = self._ask("POST", f"{BASE}/pending", {"ledgers": left[:4]})
            if answer is not None and answer.ok:
                sent = set(answer.json()["sent"])
                left[:] = [each for each in left if each["ledgerId"] not in sent]
            return not left

        self._until_answered(ask, f"{len(records)} records are accepted")

    def _ask(self, method: str, path: str, body: object = None, **params: str) -> requests.Response | None:
        sidecar = random.choice(self._sidecars)
        try:
            answer = sidecar.request(method, path, body, seconds=_REQUEST_SECONDS, **params)
        except requests.RequestException as error:
            self.answers.count(type(error).__name__)
            return None
        self.answers.count(str(answer.status_code))
        if answer.status_code == 500:
            self.answers.defect(answer)
        return answer

    def _until_answered(self, ask: Callable[[], bool], what: str) -> None:
        try:
            until(lambda: ask() or self._ended.wait(_TRY_AGAIN_SECONDS), what)
        except AssertionError as error:
            raise AssertionError(f"{error}; answers: {self.answers.counts}") from error

    # --- topics ----------------------------------------------------------------------------------------------------

    def _fill(self, topic: TopicName) -> None:
        self._scene.workload.subscribe(topic, "plain")
        self._written[topic] = self._scene.workload.fill(topic, _LEDGERS)
        self._scene.workload.subscribe(topic, "plain", acknowledge=1)

    def _records_of_data(self, topic: TopicName) -> list[dict[str, Any]]:
        data = sorted(self._scene.workload.ledgers(topic).data)
        return [record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id) for ledger_id in data]


def _parts(items: Sequence[_Item], count: int) -> list[Sequence[_Item]]:
    return [items[start::count] for start in range(count) if items[start::count]]
