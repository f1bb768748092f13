"""The deletion step: the same deletion without and with the sidecar, while the demo kills the brokers.

The demo counts every final number on the cluster in this run.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import requests

from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.features.audit.reference_scan import ReferenceScan, demand_complete
from pulsar_sidecar.model.clocks import attempts
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.ownership.claims import CursorClaim, DataClaim, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, ledger_path
from pulsar_sidecar.reports.formatting import format_count

LEDGERS_PER_TOPIC: Final = 5
_MESSAGES: Final = 2 * LEDGERS_PER_TOPIC - 1
"""Two messages fill a ledger, so the last ledger stays half full and open."""

SUBSCRIPTIONS: Final = ("billing", "search", "mail")
"""Subscriptions, each with its own cursor ledger: three more ledgers of a topic to delete."""

_CREATORS = 8
_DELETERS = 32
_REQUEST_SECONDS = 60
_RECEIVE_SECONDS = 60
"""Time enough for a client of a dead broker to find the next one."""

KILL_AFTER_ANSWERS = 20
"""Answered deletions before the demo kills the brokers, so that many others are in flight."""

_DRAIN_SECONDS = 120.0
_MOST_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """Outcome of one step.

    Attributes:
        orphans: existing ledgers of the step's topics without a reference.
        dangling: ledgers that the step's topics reference but that do not exist.
        topics_left: topics of the step that still exist.
    """

    topics: int
    ledgers: int
    accepted_at_first: int
    orphans: frozenset[LedgerId]
    dangling: frozenset[LedgerId]
    topics_left: int


@dataclass(frozen=True, slots=True)
class Drain:
    """The sidecar's backlog on its way to zero.

    Attributes:
        recorded: records of the first phase that a broker confirmed; a repeated deletion records again.
        finished: acknowledged records with a stored outcome; a killed broker may redeliver acknowledged records, and
            may have stored a record without confirming it.
        seconds: time from the last accepted deletion until nothing is pending.
    """

    recorded: int
    finished: int
    pending: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WatchedDeletion:
    """Outcome of a deletion without any request to the sidecar.

    Attributes:
        left: leaked ledgers that the sidecar did not delete.
        seconds: time from the count of leaked ledgers until none was left.
    """

    leaked: int
    left: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeletionScenario:
    """Deletion of topics without the sidecar, by the brokers' REST API at ``web_service_url``, and with it."""

    environment: DemoEnvironment
    inspector: ClusterInspector
    web_service_url: str
    topics: int

    def without_sidecar(self) -> DeletionResult:
        """Delete by the brokers' own REST API and kill both brokers meanwhile.

        A broker dies between two steps only by chance, so this repeats until something leaks.
        """
        attempts = [self._without_sidecar("public/plain-1")]
        while not (attempts[-1].orphans or attempts[-1].dangling) and len(attempts) < _MOST_ATTEMPTS:
            self.environment.report("   nothing leaked this time, the brokers died at a lucky moment; once more")
            attempts.append(self._without_sidecar(f"public/plain-{len(attempts) + 1}"))
        return _sum_of(attempts)

    def with_sidecar(self, sidecar_url: str) -> tuple[DeletionResult, Drain]:
        """Delete through the sidecar, then wait until nothing is pending."""
        namespace = "public/two-phase"
        names, ledgers = self._prepare(namespace)
        failed = self._delete_and_kill(sidecar_url, namespace, names)
        self.environment.report("   the user repeats only what was not accepted; the sidecar finishes the rest")
        left = delete_again(sidecar_url, namespace, failed, self.environment.clock.wait_seconds)
        if left:
            raise TemporaryError(f"still not accepted: {format_count(len(left), 'deletion')}, {left[0]} among them")
        pending, seconds = self._drain(sidecar_url)
        recorded, finished = _total(sidecar_url, "sent"), _total(sidecar_url, "acknowledged")
        return self._count(namespace, ledgers, self.topics - len(failed)), Drain(recorded, finished, pending, seconds)

    def watched(self, sidecar_url: str) -> WatchedDeletion:
        """Repeat the step without the sidecar while the sidecar watches, with no request to it."""
        self._wait_until(lambda: _state(sidecar_url, "watch")["state"] == "watching")
        orphans, attempt = frozenset[LedgerId](), 0
        while not orphans and attempt < _MOST_ATTEMPTS:
            attempt += 1
            orphans = self._without_sidecar(f"public/watched-{attempt}").orphans
        started = self.environment.clock.monotonic_seconds()
        self.environment.report(
            f"   {format_count(len(orphans), 'ledger')} leaked; waiting for the sidecar to find them"
        )
        self._wait_until(lambda: not self._left(orphans, sidecar_url))
        seconds = self.environment.clock.monotonic_seconds() - started
        return WatchedDeletion(len(orphans), len(self.existing(orphans)), seconds)

    def _left(self, ledger_ids: frozenset[LedgerId], sidecar_url: str) -> frozenset[LedgerId]:
        resume_if_braked(sidecar_url, self.environment.report)
        return self.existing(ledger_ids)

    def existing(self, ledger_ids: frozenset[LedgerId]) -> frozenset[LedgerId]:
        """Return the ledgers that still have metadata."""
        ordered = sorted(ledger_ids)
        nodes = self.inspector.store.read_many([ledger_path(ledger_id) for ledger_id in ordered])
        return frozenset(ledger_id for ledger_id, node in zip(ordered, nodes, strict=True) if node is not None)

    def _without_sidecar(self, namespace: str) -> DeletionResult:
        names, ledgers = self._prepare(namespace)
        failed = self._delete_and_kill(self.web_service_url, namespace, names)
        self.environment.report("   the user repeats what failed until each topic is reported gone")
        delete_again(self.web_service_url, namespace, failed, self.environment.clock.wait_seconds)
        return self._count(namespace, ledgers, self.topics - len(failed))

    def _prepare(self, namespace: str) -> tuple[list[str], int]:
        self.environment.report(
            f"   making {format_count(self.topics, 'topic')} of {LEDGERS_PER_TOPIC} ledgers in {namespace}"
        )
        names = make_topics(self.inspector.client, self.web_service_url, namespace, self.topics)
        return names, len(self._ledgers_in_namespace(namespace, self._scan().ledgers))

    def _delete_and_kill(self, url: str, namespace: str, names: Sequence[str]) -> list[str]:
        self.environment.report(
            f"   deleting all of them, and killing both brokers (kill -9) after {KILL_AFTER_ANSWERS} answers"
        )
        answers = threading.Semaphore(0)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(delete_topics, url, namespace, names, answers.release)
            for _ in range(min(KILL_AFTER_ANSWERS, len(names))):
                answers.acquire()
            self.environment.kill_brokers()
            failed = run.result()
        accepted = len(names) - len(failed)
        self.environment.report(
            f"   accepted at the first try: {format_count(accepted, 'deletion')}; not accepted: {len(failed)}"
        )
        return failed

    def _count(self, namespace: str, ledgers: int, accepted: int) -> DeletionResult:
        scan = self._scan()
        prefix = f"{MANAGED_LEDGERS}/{namespace}/persistent/"
        dangling = (id_ for id_ in scan.dangling if any(path.startswith(prefix) for path in scan.references[id_]))
        return DeletionResult(
            topics=self.topics,
            ledgers=ledgers,
            accepted_at_first=accepted,
            orphans=self._ledgers_in_namespace(namespace, scan.orphans),
            dangling=frozenset(dangling),
            topics_left=sum(
                not name.startswith("__") for name in self.inspector.store.children(prefix.rstrip("/")) or []
            ),
        )

    def _ledgers_in_namespace(self, namespace: str, ledger_ids: Collection[LedgerId]) -> frozenset[LedgerId]:
        """Return the ledgers that belong to a topic of the namespace by their metadata."""
        nodes = self.inspector.store.read_many([ledger_path(ledger_id) for ledger_id in ledger_ids])
        return frozenset(
            ledger_id
            for ledger_id, node in zip(ledger_ids, nodes, strict=True)
            if node is not None and _belongs(node, f"{namespace}/")
        )

    def _scan(self) -> ReferenceScan:
        scan = self.inspector.count()
        demand_complete(scan)
        return scan

    def _drain(self, sidecar_url: str) -> tuple[int, float]:
        """Wait until nothing is pending; return the records still pending, and the seconds that it took."""
        started = self.environment.clock.monotonic_seconds()
        while True:
            status = _state(sidecar_url, "status")
            # An unreadable backlog is not an empty one.
            pending = 1 if status.get("inflight") is None else status["inflight"]["count"]
            running = status["runningTopicDeletions"]
            seconds = self.environment.clock.monotonic_seconds() - started
            if (pending == 0 and running == 0) or seconds > _DRAIN_SECONDS:
                return pending, seconds
            self.environment.report(f"   {pending} pending, {format_count(running, 'topic deletion')} running")
            self.environment.clock.wait_seconds(2.0)

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition for a limited time; the caller checks it."""
        for _ in attempts(self.environment.clock, _DRAIN_SECONDS, 1.0):
            if is_so():
                break


def _belongs(node: Node, prefix: str) -> bool:
    claim = read_claim(decode_ledger_metadata(node.data).custom_metadata)
    return isinstance(claim, (DataClaim, CursorClaim)) and claim.managed_ledger.startswith(prefix)


def _state(sidecar_url: str, of: str) -> Any:
    answer = requests.get(f"{sidecar_url}/admin/v2/ledger-deletion/{of}", timeout=30)
    answer.raise_for_status()
    return answer.json()


def resume_if_braked(sidecar_url: str, report: Report) -> None:
    """Resume a braked watch, which takes more than 50 leaked ledgers for a disaster and waits for an operator."""
    if _state(sidecar_url, "watch")["braked"] is not None:
        report("   so many at once made the watch brake; the reason is known here, so the demo resumes it")
        requests.post(f"{sidecar_url}/admin/v2/ledger-deletion/watch/resume", timeout=30).raise_for_status()


def _total(sidecar_url: str, counter: str) -> int:
    """Return the sum of one of the sidecar's counters over its labels."""
    metrics = requests.get(f"{sidecar_url}/metrics", timeout=30).text
    name = f"pulsar_ledger_deletion_{counter}_total{{"
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name)))


def _sum_of(attempts: Sequence[DeletionResult]) -> DeletionResult:
    return DeletionResult(
        topics=sum(attempt.topics for attempt in attempts),
        ledgers=sum(attempt.ledgers for attempt in attempts),
        accepted_at_first=sum(attempt.accepted_at_first for attempt in attempts),
        orphans=frozenset().union(*(attempt.orphans for attempt in attempts)),
        dangling=frozenset().union(*(attempt.dangling for attempt in attempts)),
        topics_left=sum(attempt.topics_left for attempt in attempts),
    )


def make_topics(client: Any, web_service_url: str, namespace: str, count: int) -> list[str]:
    """Create topics of `LEDGERS_PER_TOPIC` ledgers and `SUBSCRIPTIONS` with acknowledgements; return their names."""
    requests.put(
        f"{web_service_url}/admin/v2/namespaces/{namespace}", json={}, timeout=_REQUEST_SECONDS
    ).raise_for_status()
    names = [f"topic-{index:03d}" for index in range(count)]
    with ThreadPoolExecutor(_CREATORS) as pool:
        list(pool.map(lambda name: _make_topic(client, f"persistent://{namespace}/{name}"), names))
    return names


def _make_topic(client: Any, topic: str) -> None:
    consumers = [client.subscribe(topic, subscription) for subscription in SUBSCRIPTIONS]
    producer = client.create_producer(topic, batching_enabled=False)
    for index in range(_MESSAGES):
        producer.send(f"message {index}".encode())
    for consumer in consumers:
        consumer.acknowledge(consumer.receive(timeout_millis=_RECEIVE_SECONDS * 1000))
        consumer.close()
    producer.close()


def delete_topics(
    url: str,
    namespace: str,
    names: Sequence[str],
    answered: Callable[[], None] = lambda: None,
    *,
    headers: Mapping[str, str] | None = None,
    missing_counts: bool = False,
) -> list[str]:
    """Send one ``DELETE`` for each topic, many at a time; return the topics that were not accepted.

    ``answered`` is called after each. Nothing is retried, and a broken connection is a failure like an error response.
    ``headers`` carry a credential.
    """

    def delete(name: str) -> bool:
        topic = f"{url}/admin/v2/persistent/{namespace}/{name}"
        try:
            answer = requests.delete(topic, params={"force": "true"}, headers=headers, timeout=_REQUEST_SECONDS)
        except requests.RequestException:
            return False
        finally:
            answered()
        return answer.ok or (missing_counts and answer.status_code == 404)

    with ThreadPoolExecutor(_DELETERS) as pool:
        verdicts = list(pool.map(delete, names))
    return [name for name, accepted in zip(names, verdicts, strict=True) if not accepted]


def delete_again(
    url: str,
    namespace: str,
    names: Sequence[str],
    wait: Callable[[float], object],
    rounds: int = 40,
    headers: Mapping[str, str] | None = None,
) -> list[str]:
    """Retry failed deletions like a user until all are accepted; return the topics that are left."""
    left = list(names)
    for _ in range(rounds):
        left = delete_topics(url, namespace, left, headers=headers, missing_counts=True)
        if not left:
            break
        wait(0.5)
    return left
