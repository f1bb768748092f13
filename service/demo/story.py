"""The story: the same deletion, with the brokers killed in the middle, without the sidecar and with it.

Every number it ends with is counted on the cluster in this run.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from service.audit.census import Census, demand_complete, take_census
from service.demo.stage import Stage
from service.demo.workload import LEDGERS_PER_TOPIC, delete_again, delete_topics, make_topics
from service.ledger_ownership.claims import CursorClaim, DataClaim, read_claim
from service.ledger_ownership.compaction import CompactedLedgers
from service.ledger_ownership.ledger_metadata import decode_ledger_metadata
from service.ledger_ownership.paths import DEFAULT_LEDGERS_ROOT, MANAGED_LEDGERS, ledger_path
from service.model.clocks import Clock
from service.model.errors import TemporaryError
from service.model.ids import LedgerId
from service.model.metadata import MetadataStore, Node

KILL_AFTER_SECONDS = 0.5
_DRAIN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Act:
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
    """How the sidecar's backlog went to zero."""

    highest_pending: int
    pending: int
    seconds: float
    deleted_by_sidecar: int


class Story:
    """Plays the acts."""

    def __init__(
        self,
        stage: Stage,
        store: MetadataStore,
        compacted: CompactedLedgers,
        client: Any,
        web_service_urls: Sequence[str],
        clock: Clock,
        say: Callable[[str], None],
        topics: int,
    ) -> None:
        self._stage = stage
        self._store = store
        self._compacted = compacted
        self._client = client
        self._urls = web_service_urls
        self._clock = clock
        self._say = say
        self._topics = topics
        self._never = threading.Event()

    def without_sidecar(self) -> Act:
        """Act one: delete over the brokers' own REST API and kill both brokers half a second in."""
        return self._act("public/plain", self._urls[0])

    def with_sidecar(self, sidecar_url: str) -> tuple[Act, Drain]:
        """Act two: the same through the sidecar, then wait until nothing is pending."""
        namespace = "public/two-phase"
        names, ledgers = self._prepare(namespace)
        accepted = self._delete_and_kill(sidecar_url, namespace, names)
        self._say("   the user repeats what was not accepted; the sidecar finishes what it accepted")
        left = delete_again(sidecar_url, namespace, names, self._wait)
        if left:
            raise TemporaryError(f"{len(left)} deletions were still not accepted, {left[0]} among them")
        drain = self._drain(sidecar_url)
        return self._count(namespace, ledgers, accepted), drain

    def _act(self, namespace: str, url: str) -> Act:
        names, ledgers = self._prepare(namespace)
        accepted = self._delete_and_kill(url, namespace, names)
        self._say("   the user repeats every deletion until each topic is reported gone")
        delete_again(url, namespace, names, self._wait, rounds=20)
        return self._count(namespace, ledgers, accepted)

    def _prepare(self, namespace: str) -> tuple[list[str], int]:
        self._say(f"   making {self._topics} topics of {LEDGERS_PER_TOPIC} ledgers in {namespace}")
        names = make_topics(self._client, self._urls[0], namespace, self._topics)
        return names, len(self._of_namespace(namespace, self._census().ledgers))

    def _delete_and_kill(self, url: str, namespace: str, names: Sequence[str]) -> int:
        self._say(f"   deleting all of them, and killing both brokers (kill -9) {KILL_AFTER_SECONDS} s in")
        with ThreadPoolExecutor(1) as pool:
            run = pool.submit(delete_topics, url, namespace, names)
            self._wait(KILL_AFTER_SECONDS)
            for broker in ("broker-1", "broker-2"):
                self._stage.cluster.kill(broker)
            self._say("   both brokers are dead; starting them again")
            with ThreadPoolExecutor(2) as restarts:
                list(restarts.map(self._stage.cluster.restart, ("broker-1", "broker-2")))
            result = run.result()
        self._say(f"   {result.accepted} deletions were accepted at the first try, {result.failed} were not")
        return result.accepted

    def _count(self, namespace: str, ledgers: int, accepted: int) -> Act:
        census = self._census()
        prefix = f"{MANAGED_LEDGERS}/{namespace}/persistent/"
        dangling = (id_ for id_ in census.dangling if any(path.startswith(prefix) for path in census.references[id_]))
        return Act(
            topics=self._topics,
            ledgers=ledgers,
            accepted_at_first=accepted,
            orphans=self._of_namespace(namespace, census.orphans),
            dangling=frozenset(dangling),
            topics_left=len(self._store.children(prefix.rstrip("/")) or []),
        )

    def _of_namespace(self, namespace: str, ledger_ids: Collection[LedgerId]) -> frozenset[LedgerId]:
        """Those that say of themselves that they belong to a topic of the namespace."""
        nodes = self._store.read_many([ledger_path(ledger_id) for ledger_id in ledger_ids])
        return frozenset(
            ledger_id
            for ledger_id, node in zip(ledger_ids, nodes, strict=True)
            if node is not None and _belongs(node, f"{namespace}/")
        )

    def _census(self) -> Census:
        census = take_census(self._store, self._compacted, DEFAULT_LEDGERS_ROOT)
        demand_complete(census)
        return census

    def _drain(self, sidecar_url: str) -> Drain:
        started = self._clock.monotonic_seconds()
        highest = 0
        while True:
            pending, running = _pending(sidecar_url)
            highest = max(highest, pending)
            seconds = self._clock.monotonic_seconds() - started
            if pending == 0 and running == 0:
                return Drain(highest, 0, seconds, _deleted_by(sidecar_url))
            if seconds > _DRAIN_SECONDS:
                return Drain(highest, pending, seconds, _deleted_by(sidecar_url))
            self._say(f"   {pending} pending, {running} topic deletions running")
            self._wait(2.0)

    def _wait(self, seconds: float) -> None:
        self._clock.wait_seconds(seconds, self._never)


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


def _deleted_by(sidecar_url: str) -> int:
    metrics = requests.get(f"{sidecar_url}/metrics", timeout=30).text
    return round(
        sum(
            float(line.rsplit(" ", 1)[1])
            for line in metrics.splitlines()
            if line.startswith("pulsar_ledger_deletion_deleted_total")
        )
    )
