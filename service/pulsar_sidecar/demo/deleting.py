"""The same deletion, with the brokers killed in the middle, without the sidecar and with it.

Every number it ends with is counted on the cluster in this run.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests

from pulsar_sidecar.audit.reference_scan import ReferenceScan, demand_complete
from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.demo.workload import LEDGERS_PER_TOPIC, DeletionRun, delete_again, delete_topics, make_topics
from pulsar_sidecar.ledger_ownership.claims import CursorClaim, DataClaim, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, ledger_path
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node

KILL_AFTER_ANSWERS = 20
"""Deletions that are answered before the brokers are killed, so that many others are then under way."""

_DRAIN_SECONDS = 120.0
_MOST_PLAIN_ACTS = 3


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """What one act left behind.

    Attributes:
        orphans: ledgers of the act's topics that exist and that nothing references.
        dangling: references of the act's topics to ledgers that do not exist.
        topics_left: topics of the act that still exist.
    """

    topics: int
    ledgers: int
    accepted_at_first: int
    orphans: frozenset[LedgerId]
    dangling: frozenset[LedgerId]
    topics_left: int


@dataclass(frozen=True, slots=True)
class Drain:
    """How the sidecar's backlog went to zero.

    Attributes:
        recorded: ledgers recorded in the first phase.
        finished: records that were acknowledged, each with its outcome kept.
        seconds: from the last accepted deletion to nothing pending.
    """

    recorded: int
    finished: int
    highest_pending: int
    pending: int
    seconds: float


class DeletionScenario:
    """Deletes topics without the sidecar and with it."""

    def __init__(
        self,
        environment: DemoEnvironment,
        inspector: ClusterInspector,
        web_service_url: str,
        clock: Clock,
        say: Callable[[str], None],
        topics: int,
    ) -> None:
        self._environment = environment
        self._inspector = inspector
        self._store = inspector.store
        self._url = web_service_url
        self._clock = clock
        self._say = say
        self._topics = topics

    def without_sidecar(self) -> DeletionResult:
        """Delete over the brokers' own REST API and kill both brokers in the middle.

        Whether a broker dies between two steps is chance, so this is repeated until something leaks.
        """
        acts = [self._plain_act("public/plain-1")]
        while not (acts[-1].orphans or acts[-1].dangling) and len(acts) < _MOST_PLAIN_ACTS:
            self._say("   nothing leaked this time, the brokers died at a lucky moment; once more")
            acts.append(self._plain_act(f"public/plain-{len(acts) + 1}"))
        return _sum_of(acts)

    def with_sidecar(self, sidecar_url: str) -> tuple[DeletionResult, Drain]:
        """The same through the sidecar, then wait until nothing is pending."""
        namespace = "public/two-phase"
        names, ledgers = self._prepare(namespace)
        with _Sampler(sidecar_url, self._wait) as sampler:
            run = self._delete_and_kill(sidecar_url, namespace, names)
            self._say("   the user repeats only what was not accepted; the sidecar finishes the rest")
            left = delete_again(sidecar_url, namespace, run.failed, self._wait)
            if left:
                raise TemporaryError(f"{len(left)} deletions were still not accepted, {left[0]} among them")
            drain = self._drain(sidecar_url, sampler)
        return self._count(namespace, ledgers, len(run.accepted)), drain

    def existing(self, ledger_ids: frozenset[LedgerId]) -> frozenset[LedgerId]:
        """Those of the ledgers that still have metadata."""
        ordered = sorted(ledger_ids)
        nodes = self._store.read_many([ledger_path(ledger_id) for ledger_id in ordered])
        return frozenset(ledger_id for ledger_id, node in zip(ordered, nodes, strict=True) if node is not None)

    def _plain_act(self, namespace: str) -> DeletionResult:
        names, ledgers = self._prepare(namespace)
        run = self._delete_and_kill(self._url, namespace, names)
        self._say("   the user repeats what failed until each topic is reported gone")
        delete_again(self._url, namespace, run.failed, self._wait)
        return self._count(namespace, ledgers, len(run.accepted))

    def _prepare(self, namespace: str) -> tuple[list[str], int]:
        self._say(f"   making {self._topics} topics of {LEDGERS_PER_TOPIC} ledgers in {namespace}")
        names = make_topics(self._inspector.client, self._url, namespace, self._topics)
        return names, len(self._of_namespace(namespace, self._scan().ledgers))

    def _delete_and_kill(self, url: str, namespace: str, names: Sequence[str]) -> DeletionRun:
        self._say(f"   deleting all of them, and killing both brokers (kill -9) after {KILL_AFTER_ANSWERS} answers")
        answers = threading.Semaphore(0)
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(delete_topics, url, namespace, names, answers.release)
            for _ in range(min(KILL_AFTER_ANSWERS, len(names))):
                answers.acquire()
            self._environment.kill_brokers()
            result = run.result()
        self._say(f"   {len(result.accepted)} deletions were accepted at the first try, {len(result.failed)} were not")
        return result

    def _count(self, namespace: str, ledgers: int, accepted: int) -> DeletionResult:
        scan = self._scan()
        prefix = f"{MANAGED_LEDGERS}/{namespace}/persistent/"
        dangling = (id_ for id_ in scan.dangling if any(path.startswith(prefix) for path in scan.references[id_]))
        return DeletionResult(
            topics=self._topics,
            ledgers=ledgers,
            accepted_at_first=accepted,
            orphans=self._of_namespace(namespace, scan.orphans),
            dangling=frozenset(dangling),
            topics_left=sum(not name.startswith("__") for name in self._store.children(prefix.rstrip("/")) or []),
        )

    def _of_namespace(self, namespace: str, ledger_ids: Collection[LedgerId]) -> frozenset[LedgerId]:
        """Those that say of themselves that they belong to a topic of the namespace."""
        nodes = self._store.read_many([ledger_path(ledger_id) for ledger_id in ledger_ids])
        return frozenset(
            ledger_id
            for ledger_id, node in zip(ledger_ids, nodes, strict=True)
            if node is not None and _belongs(node, f"{namespace}/")
        )

    def _scan(self) -> ReferenceScan:
        scan = self._inspector.count()
        demand_complete(scan)
        return scan

    def _drain(self, sidecar_url: str, sampler: "_Sampler") -> Drain:
        started = self._clock.monotonic_seconds()
        while True:
            pending, running = _pending(sidecar_url)
            seconds = self._clock.monotonic_seconds() - started
            if (pending == 0 and running == 0) or seconds > _DRAIN_SECONDS:
                recorded, finished = _total(sidecar_url, "sent"), _total(sidecar_url, "acknowledged")
                return Drain(recorded, finished, max(sampler.highest, pending), pending, seconds)
            self._say(f"   {pending} pending, {running} topic deletions running")
            self._wait(2.0)

    def _wait(self, seconds: float) -> None:
        self._clock.wait_seconds(seconds)


def _belongs(node: Node, prefix: str) -> bool:
    claim = read_claim(decode_ledger_metadata(node.data).custom_metadata)
    return isinstance(claim, (DataClaim, CursorClaim)) and claim.managed_ledger.startswith(prefix)


def _pending(sidecar_url: str) -> tuple[int, int]:
    status = requests.get(f"{sidecar_url}/admin/v2/ledger-deletion/status", timeout=30)
    status.raise_for_status()
    document = status.json()
    inflight = document.get("inflight")
    # A backlog that could not be read is not an empty one.
    return (1 if inflight is None else inflight["count"]), document["runningTopicDeletions"]


def _total(sidecar_url: str, counter: str) -> int:
    """The sum of one of the sidecar's own counters over its labels."""
    metrics = requests.get(f"{sidecar_url}/metrics", timeout=30).text
    name = f"pulsar_ledger_deletion_{counter}_total{{"
    return round(sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name)))


def _sum_of(acts: Sequence[DeletionResult]) -> DeletionResult:
    return DeletionResult(
        topics=sum(act.topics for act in acts),
        ledgers=sum(act.ledgers for act in acts),
        accepted_at_first=sum(act.accepted_at_first for act in acts),
        orphans=frozenset().union(*(act.orphans for act in acts)),
        dangling=frozenset().union(*(act.dangling for act in acts)),
        topics_left=sum(act.topics_left for act in acts),
    )


class _Sampler:
    """Looks at the pending count while an act goes on; while brokers are dead it cannot be read, which is no zero."""

    def __init__(self, sidecar_url: str, wait: Callable[[float], None]) -> None:
        self.highest = 0
        self._url = sidecar_url
        self._wait = wait
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.is_set():
            try:
                status = requests.get(f"{self._url}/admin/v2/ledger-deletion/status", timeout=30).json()
                self.highest = max(self.highest, (status.get("inflight") or {"count": 0})["count"])
            except requests.RequestException:
                pass
            self._wait(0.5)
