"""The mixed work of a soak: ledgers recorded, topics deleted, leaks left, messages cancelled, audits made, kills.

Every caller picks a sidecar at random and retries until it gets a response, as Pulsar's own callers do.
What must have come of the work when it has ended is counted on the cluster itself (`demand_nothing_is_left`).
"""

import random
import shutil
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pulsar
import requests
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import CursorName, TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path

from tests.cluster.delays import SHARED, DelayedTopic, Deliveries, Sent, now_ms
from tests.cluster.orphans import Orphan, OrphanMaker
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, run_command
from tests.cluster.topics import Workload, record, unique

_TRY_AGAIN_SECONDS = 1.0
_ANSWER_SECONDS = 900
_TURN_SECONDS = 5.0
_DUE_SECONDS = (120, 240)
_TOPIC_SECONDS = 600
_SUBSCRIPTION = "work"
_GONE_SECONDS = 900
_HOUR_SHARE = "0.05"
_CHANGED = "the dump has only "
_AUDIT = (
    *("--min-age-hours", _HOUR_SHARE, "--look-window-hours", _HOUR_SHARE, "--allow-young"),
    *("--max-share", "1", "--max-shrink", "1", "--bookkeeper-exclusive-to-cluster"),
)


@dataclass(slots=True)
class Tally:
    """Work done, and failures."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.done[what] += number

    def defect(self, what: str) -> None:
        with self._lock:
            self.wrong.append(what)

    def going_on(self, work: Callable[[], None], stop: threading.Event) -> None:
        """The work until ``stop``; it restarts after an error, which counts."""
        while not stop.is_set():
            try:
                work()
            except (AssertionError, OSError, SidecarError, pulsar.PulsarException) as error:
                steps = [f"{step.name}:{step.lineno}" for step in traceback.extract_tb(error.__traceback__)]
                self.defect(f"{type(error).__name__} in {' > '.join(steps[1:5])}: {str(error)[:1000]}")


class Callers:
    """Callers that retry at any sidecar until there is a response."""

    def __init__(self, sidecars: Sequence[SidecarProcess], tally: Tally, stop: threading.Event) -> None:
        self._sidecars = sidecars
        self._tally = tally
        self.stop = stop

    def any(self) -> SidecarProcess:
        return random.choice(self._sidecars)

    def ask(self, what: str, ask: Callable[[SidecarProcess], requests.Response | None]) -> requests.Response:
        """Return the first response below 500; everything else is counted, and 500 is a defect."""

        def answered() -> list[requests.Response]:  # a response that is an error counts as false
            try:
                answer = ask(self.any())
            except requests.RequestException as error:
                self._tally.count(f"{what}: {type(error).__name__}, asked again")
                return []
            if answer is not None and answer.status_code == requests.codes.server_error:
                self._tally.defect(f"{what}: {answer.text[:300]}")
            if answer is None or answer.status_code >= 500:
                self._tally.count(f"{what}: {'later' if answer is None else answer.status_code}, asked again")
                return []
            return [answer]

        return until(answered, what, _ANSWER_SECONDS, pause_seconds=_TRY_AGAIN_SECONDS)[0]


class Work:
    """Mixed work; each method that ends in ``_on`` is one thread's, until ``stop``."""

    def __init__(
        self,
        cluster: ClusterUnderTest,
        workload: Workload,
        callers: Callers,
        tally: Tally,
        directory: Path,
        rate: float,
    ) -> None:
        """Work at ``rate`` deletions and cancellations a second."""
        self._cluster = cluster
        self._workload = workload
        self._callers = callers
        self._tally = tally
        self._rate = rate
        self._stop = callers.stop
        self._maker = OrphanMaker(cluster.addresses, topics=10)
        self._orphans: list[Orphan] = []
        self._ledgers: set[LedgerId] = set()
        self._leaked: set[LedgerId] = set()
        self._directory = directory
        self.namespace = f"public/soak-{unique()}"
        workload.admin("PUT", f"namespaces/{self.namespace}", {})

    @property
    def namespaces(self) -> list[str]:
        """All that has topics."""
        own = {topic.namespace for topic in self._maker.topics}
        return [self.namespace, *map(str, own), SYSTEM_NAMESPACE]

    def close(self) -> None:
        self._maker.close()

    # --- deletions -------------------------------------------------------------------------------------------------

    def record_ledgers_on(self) -> None:
        """Record ledgers that no list names, as a trim leaves them behind, a few at a time."""
        while not self._stop.wait(_TURN_SECONDS):
            orphans = self._maker.make(max(1, round(self._rate * _TURN_SECONDS)))
            left = {each.ledger_id: each for each in orphans}
            while left:
                records = [record(each.topic, LedgerComponent.MANAGED_LEDGER, id_) for id_, each in left.items()]
                answer = self._callers.ask("records", partial(_post_records, records))
                for ledger_id in answer.json()["sent"]:
                    left.pop(LedgerId(ledger_id))
            self._orphans += orphans
            self._tally.count("ledgers recorded", len(orphans))

    def delete_topics_on(self) -> None:
        """Delete topics with messages, a cursor and two ledgers."""
        while not self._stop.wait(_TURN_SECONDS):
            topic = self._new_topic("doomed")
            ledgers = self._workload.ledgers(topic).all
            self._delete_topic(topic)
            self._ledgers |= ledgers
            self._tally.count("topics deleted")

    def leak_on(self) -> None:
        """Leak every minute, for the watch, the leftovers of a broker that dies while it deletes a topic."""
        while not self._stop.wait(60):
            topic = self._new_topic("leaking")
            ledgers = self._workload.ledgers(topic)
            self._stop.wait(_TURN_SECONDS)  # so that the watch has read the lists
            self._workload.unload(topic)
            name = topic.managed_ledger_name
            for cursor in self._workload.store.children(managed_ledger_path(name)) or []:
                self._workload.store.delete(cursor_path(name, CursorName(cursor)))
            self._workload.store.delete(managed_ledger_path(name))
            self._leaked |= ledgers.all
            self._tally.count("topics leaked")

    def _new_topic(self, kind: str) -> TopicName:
        topic = parse_topic_name(f"persistent://{self.namespace}/{kind}-{unique()}")
        self._workload.subscribe(topic, _SUBSCRIPTION)
        self._workload.produce(topic, [b"first"])
        self._workload.unload(topic)
        self._workload.produce(topic, [b"second"])
        self._workload.subscribe(topic, _SUBSCRIPTION, acknowledge=1)
        return topic

    def _delete_topic(self, topic: TopicName) -> None:
        path = f"/admin/v2/{self._workload.of_topic(topic)}"
        answer = self._callers.ask("topic deletion", lambda it: _final_answer(it.request("DELETE", path, force="true")))
        if answer.status_code not in (204, 404):
            self._tally.defect(f"{topic} is not deleted: {answer.status_code} {answer.text[:300]}")

    # --- cancellations ---------------------------------------------------------------------------------------------

    def cancel_on(self) -> None:
        """Cancel every other delayed message, on another topic every ten minutes."""
        with ExitStack() as stack:
            former: list[_Cancelling] = []
            while not self._stop.is_set():
                topic = parse_topic_name(f"persistent://{self.namespace}/delayed-{unique()}")
                current = _Cancelling(DelayedTopic(self._cluster.addresses, topic), stack, self._callers, self._tally)
                ends = now_ms() + _TOPIC_SECONDS * 1000
                while now_ms() < ends and not self._stop.wait(_TURN_SECONDS):
                    current.send_and_cancel(round(self._rate * _TURN_SECONDS))
                    former = [each for each in former if not self._end_if_done(each)]
                former.append(current)
            for each in former:
                until(each.is_done, f"the last messages of {each.topic.topic} are delivered")
                self._end_if_done(each)

    def _end_if_done(self, cancelling: "_Cancelling") -> bool:
        if not cancelling.is_done():
            return False
        cancelling.check()
        self._delete_topic(cancelling.topic.topic)
        return True

    # --- audits and kills ------------------------------------------------------------------------------------------

    def audit_on(self, every_seconds: float) -> None:
        """Audit the whole cluster again and again by the commands, as a timer does."""
        previous: Path | None = None
        while not self._stop.wait(every_seconds):
            audit = until(partial(self._audited, previous), "an audit passes its guards", every_seconds)
            self._tally.count("audits")
            if previous is not None:
                shutil.rmtree(previous)
            previous = audit

    def _audited(self, previous: Path | None) -> Path | None:
        """Return an audit's directory; None where too many of the few ledgers changed between listing and dump."""
        here = self._directory / f"audit-{unique()}"
        here.mkdir()
        store = self._cluster.addresses.metadata_store_url
        listing, dump, audit = (str(here / name) for name in ("listing", "dump", "audit"))
        chained = [] if previous is None else ["--previous", str(previous / "audit")]
        self._command("ledgers", "list", "--metadata-store-url", store, "--output", listing)
        self._command("metadata", "dump", "--source", f"zk://{store.removeprefix('zk:')}", "--output", dump)
        answer = run_command(
            *("audit", "run", *_AUDIT, "--listing", listing, "--dump", dump, "--output", audit, *chained)
        )
        if answer.exit_code in (0, 2):
            return here
        assert _CHANGED in answer.stderr, f"audit run: {answer.stderr[-500:]}"
        self._tally.count("audit refused, made again")
        shutil.rmtree(here)
        return None

    def _command(self, *arguments: str) -> None:
        answer = run_command(*arguments)
        assert answer.exit_code == 0, f"{' '.join(arguments[:2])}: {answer.stderr[-500:]}"

    def kill_on(self, mortal: SidecarProcess, every_seconds: float) -> None:
        """Kill and start again: three times a sidecar, then a broker."""
        number = 0
        while not self._stop.wait(every_seconds):
            number += 1
            if number % 4:
                mortal.kill()
                self._tally.count("sidecar killed")
                mortal.restart()
                mortal.wait_until_ready()
            else:
                self._cluster.kill("broker-2")
                self._tally.count("broker killed")
                self._cluster.restart("broker-2")

    # --- afterwards ------------------------------------------------------------------------------------------------

    def demand_nothing_is_left(self, sidecar: SidecarProcess) -> None:
        """Demand, once the work has ended, that nothing is left or waits."""
        until(lambda: self._maker.remaining(self._orphans) == 0, "every recorded ledger is gone", _GONE_SECONDS)
        until(lambda: not self._workload.existing(self._ledgers), "every deleted topic's ledger is gone", _GONE_SECONDS)
        until(lambda: not self._workload.existing(self._leaked), "every leaked ledger is gone", _GONE_SECONDS)
        until(lambda: sidecar.inflight() == 0, "no record waits", _GONE_SECONDS)
        dead = sidecar.call("GET", f"{BASE}/dead-letters")
        if dead:
            self._tally.defect(f"dead letters: {dead}")
        self._tally.count("ledgers of deleted topics", len(self._ledgers))
        self._tally.count("leaked ledgers", len(self._leaked))


class _Cancelling:
    """A topic with delayed messages and consumers."""

    def __init__(self, topic: DelayedTopic, stack: ExitStack, callers: Callers, tally: Tally) -> None:
        self.topic = topic
        self._callers = callers
        self._tally = tally
        self._own = stack.enter_context(ExitStack())
        self._own.callback(topic.close)
        topic.subscribe(_SUBSCRIPTION, SHARED)
        self._deliveries: Deliveries = self._own.enter_context(topic.consuming(_SUBSCRIPTION, SHARED, consumers=1))
        self._cancelled: set[int] = set()

    def send_and_cancel(self, count: int) -> None:
        """Send twice as many messages as are cancelled."""
        due = [now_ms() + random.randrange(*_DUE_SECONDS) * 1000 for _ in range(2 * count)]
        for sent in self.topic.send(2 * count, due)[::2]:
            answer = self._callers.ask("cancellation", partial(self._cancel, sent))
            if answer.ok:
                self._cancelled.add(sent.number)
                self._tally.count("messages cancelled")
            else:
                self._tally.count(f"cancellation refused: {answer.status_code} {answer.text[:100]}")

    def _cancel(self, sent: Sent, sidecar: SidecarProcess) -> requests.Response:
        return self.topic.cancel(sidecar, sent)

    def is_done(self) -> bool:
        """Return True once every other message was delivered and the last one's time is past."""
        last = max((each.deliver_at for each in self.topic.sent), default=0)
        return now_ms() > last + 5_000 and self._expected() <= self._deliveries.numbers

    def check(self) -> None:
        """Demand that no cancelled message was delivered, and end the consumers."""
        wrong = self._deliveries.numbers & self._cancelled
        if wrong:
            self._tally.defect(f"cancelled and delivered: {len(wrong)} of {self.topic.topic}")
        self._tally.count("messages delivered", len(self._deliveries.numbers))
        self._own.close()

    def _expected(self) -> set[int]:
        numbers: Sequence[Sent] = self.topic.sent
        return {each.number for each in numbers} - self._cancelled


def _post_records(records: Sequence[object], sidecar: SidecarProcess) -> requests.Response:
    return sidecar.request("POST", f"{BASE}/pending", {"ledgers": list(records)})


def _final_answer(answer: requests.Response) -> requests.Response | None:
    """Return None for a deletion that another call waits for, so that it is retried."""
    return None if answer.status_code in (202, 409) else answer
