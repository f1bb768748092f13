"""What must be true after every test of deletion, whatever the test did to sidecars and brokers.

- S1: no referenced ledger is gone. - S2: topics that stay read from their first message to their last.
- L1: no accepted record is unfinished: the backlog returns to 0, no topic deletion runs on, and each ledger that a
sidecar accepted has a final outcome. - E1: each ledger's effect happened once. - Nothing that a sidecar accepted is
left an orphan. - Every step that a sidecar reported is one that the protocol's model allows: looked at when the
session ends and the replay is switched on (`tests.model.conformance`).

Invariant: everything is counted on the cluster itself, by a scan of the metadata store and by reading the outcome
topic from its beginning; nothing is believed because a sidecar reports it, except that its backlog is empty.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pulsar
from pulsar_sidecar.audit.reference_scan import ReferenceScan, demand_complete, scan_references
from pulsar_sidecar.ledger_ownership.claims import CursorClaim, DataClaim, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, SCHEMAS, managed_ledger_path
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR

from tests.cluster.patience import Found, NotInTime, until
from tests.cluster.topics import Workload
from tests.cluster.transaction_log import TransactionLog
from tests.model import conformance

OUTCOME_TOPIC = parse_topic_name("persistent://pulsar/system/__ledger_deletion-OUTCOME")
FINAL = frozenset({"deleted", "kept", "rejected", "dead-letter", "set-aside"})
NOT_OURS_TO_DELETE = frozenset({"not-pulsars", "unknown-component"})
"""Reasons for which an orphan stays one."""

_READ_MS = 60_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the outcome topic; ``step`` is judged, settled, undeleted or topic-deletion."""

    step: str
    sidecar: str
    entry: dict[str, Any]

    @property
    def ledger_id(self) -> LedgerId | None:
        return self.entry.get("ledgerId")

    @property
    def decision(self) -> str:
        return str(self.entry.get("decision", ""))

    @property
    def reason(self) -> str:
        return str(self.entry.get("reason", ""))

    @property
    def message_id(self) -> str:
        return str(self.entry.get("messageId", ""))


class RunningSidecar(Protocol):
    """What the oracles ask a sidecar for."""

    def status(self) -> dict[str, Any]: ...

    def log(self) -> str: ...


class OutcomeLog:
    """The outcome topic, read from its beginning and then on."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._reader: pulsar.Reader | None = None
        self._read: list[Outcome] = []
        self._seen: set[bytes] = set()

    @property
    def all(self) -> list[Outcome]:
        """Everything that is there by now; nothing before the first sidecar has created the topic."""
        node = managed_ledger_path(OUTCOME_TOPIC.managed_ledger_name)
        if self._reader is None and self._workload.store.read(node) is None:
            return []
        until(self._has_caught_up, "the outcome topic can be read")
        return self._read

    def _has_caught_up(self) -> bool:
        """Read what is new; False when the connection broke, and the topic has to be read from its beginning."""
        if self._reader is None:
            self._reader = self._workload.client.create_reader(str(OUTCOME_TOPIC), pulsar.MessageId.earliest)
        try:
            self._read_on(self._reader)
        except pulsar.PulsarException:
            with suppress(pulsar.PulsarException):
                self._reader.close()
            self._reader = None
            return False
        return True

    def _read_on(self, reader: pulsar.Reader) -> None:
        while reader.has_message_available():
            payload = bytes(reader.read_next(_READ_MS).data())
            if payload in self._seen:
                # A client whose connection broke sends again what was stored, and brokers deduplicate no system topic.
                # One message names the sidecar, its step and the millisecond, so this is the same effect again.
                continue
            self._seen.add(payload)
            document = json.loads(payload)
            for entry in document["entries"]:
                self._read.append(Outcome(document["step"], document["sidecar"], entry))

    def since(self, mark: int) -> list[Outcome]:
        """What came after a mark, which was the length of `all`."""
        return self.all[mark:]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Oracles:
    """Watches one test; `check` when it has ended."""

    def __init__(self, workload: Workload, log: OutcomeLog) -> None:
        self._workload = workload
        self._log = log
        self._mark = len(log.all)
        self._known_dangling = self.reference_scan().dangling
        self._accepted: set[LedgerId] = set()
        self._kept: dict[TopicName, Sequence[bytes]] = {}
        self._damaged: set[str] = set()

    def add_accepted(self, ledger_ids: Iterable[LedgerId]) -> None:
        """A sidecar has accepted a record for each of these."""
        self._accepted.update(ledger_ids)

    @property
    def accepted(self) -> int:
        """How many ledgers a sidecar has accepted a record of."""
        return len(self._accepted)

    def keeps(self, topic: TopicName, payloads: Sequence[bytes]) -> None:
        """This topic stays, and holds exactly these messages."""
        self._kept[topic] = payloads

    def expect_broken_topics_in(self, namespace: str) -> None:
        """This test damages topics of the namespace itself, without a sidecar."""
        self._damaged.add(namespace)

    def reference_scan(self) -> ReferenceScan:
        """A complete scan of the references; repeated while nodes vanish under it."""

        def count() -> ReferenceScan | None:
            try:
                return scan_references(self._workload.tree, self._workload.compacted)
            except TemporaryError:
                return None

        scan = until(count, "a scan is complete")
        demand_complete(scan)
        return scan

    def leaks_in(self, namespace: str) -> tuple[frozenset[LedgerId], frozenset[LedgerId]]:
        """Data and cursor ledgers of the namespace that nothing references, and references of it to no ledger."""
        scan = self.reference_scan()
        prefix = f"{MANAGED_LEDGERS}/{namespace}/"
        orphans = frozenset(
            ledger_id
            for ledger_id, node in self._workload.ledger_nodes(scan.orphans).items()
            if _claims_to_be_in(node.data, f"{namespace}/")
        )
        dangling = frozenset(
            ledger_id
            for ledger_id in scan.dangling
            if any(path.startswith(prefix) for path in scan.references[ledger_id])
        )
        return orphans, dangling

    @property
    def outcomes(self) -> list[Outcome]:
        """What this test has put on the outcome topic so far."""
        return self._log.since(self._mark)

    def finals(self, ledger_id: int) -> list[Outcome]:
        """How records of a ledger have ended so far in this test."""
        return self._finals_by_ledger().get(LedgerId(ledger_id), [])

    def _finals_by_ledger(self) -> dict[LedgerId, list[Outcome]]:
        found: dict[LedgerId, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.step == "settled" and outcome.decision in FINAL and outcome.ledger_id is not None:
                found.setdefault(outcome.ledger_id, []).append(outcome)
        return found

    def wait_for_finals(self, ledger_ids: Iterable[int]) -> dict[int, Outcome]:
        """The newest final outcome of each ledger, once all have one."""
        wanted = set(ledger_ids)

        def look() -> dict[int, Outcome] | None:
            ended = self._finals_by_ledger()
            return {id_: ended[LedgerId(id_)][-1] for id_ in wanted} if wanted <= ended.keys() else None

        try:
            return _demand(look, f"every one of {len(wanted)} ledgers has an outcome") if wanted else {}
        except AssertionError as error:
            error.add_note(f"their last outcomes: {self._last_of(wanted - self._finals_by_ledger().keys())}")
            raise

    def _last_of(self, ledger_ids: Collection[int]) -> dict[int, str]:
        found = {outcome.ledger_id: str(outcome) for outcome in self.outcomes}
        return {ledger_id: found.get(LedgerId(ledger_id), "none") for ledger_id in sorted(ledger_ids)[:10]}

    def wait_until_drained(self, sidecar: RunningSidecar) -> None:
        """No record waits and no deletion of a topic or a namespace runs."""

        started = time.monotonic()

        def is_drained() -> bool:
            status = sidecar.status()
            inflight = status["inflight"]
            if inflight is None or inflight["ageMs"] / 1000 > time.monotonic() - started:
                return False  # measured before the question
            return (inflight["count"], status["runningTopicDeletions"], status["runningNamespaceDeletions"]) == (
                0,
                0,
                0,
            )

        _demand(is_drained, f"nothing waits any more\n{sidecar.log()}")

    def check(self, sidecar: RunningSidecar) -> None:
        """Demand all of it; ``sidecar`` is a running one."""
        self.wait_until_drained(sidecar)
        self.wait_for_finals(self._accepted)
        self._check_effects_happened_once()
        self._check_nothing_referenced_is_gone()
        self._check_what_stays_reads_to_its_end()
        self._check_no_orphan_we_know_of()
        conformance.note([(outcome.step, outcome.sidecar, outcome.entry) for outcome in self.outcomes])

    def _check_effects_happened_once(self) -> None:
        deleted = Counter(
            (outcome.ledger_id, outcome.entry["ledgerType"])
            for outcome in self.outcomes
            if outcome.step == "settled" and outcome.decision == "deleted"
        )
        brought_back = Counter(outcome.ledger_id for outcome in self.outcomes if outcome.step == "undeleted")
        twice = {key: count for key, count in deleted.items() if count > 1 + brought_back[key[0]]}
        assert not twice, f"E1: deleted more than once: {twice}"

    def _check_nothing_referenced_is_gone(self) -> None:
        # A ledger that appears, or a topic that goes, while it is counted is no finding: it has to be there twice.
        suspects = self.reference_scan().dangling - self._known_dangling
        if suspects:
            again = self.reference_scan()
            suspects &= again.dangling
            found = {ledger_id: again.references[ledger_id] for ledger_id in suspects}
            found = {ledger_id: paths for ledger_id, paths in found.items() if not self._is_damaged(paths)}
            for ledger_id in self._deleted_by_brokers(found):
                del found[ledger_id]
            assert not found, f"S1: referenced ledgers are gone: {found}"

    def _check_what_stays_reads_to_its_end(self) -> None:
        for topic, payloads in self._kept.items():
            read = self._workload.read_all(topic)
            assert read == list(payloads), f"S2: {topic} has {len(payloads)} messages and {len(read)} were read"

    def _deleted_by_brokers(self, found: Mapping[LedgerId, Iterable[str]]) -> list[LedgerId]:
        """The ledgers, by what names them, that a broker has deleted while a cursor's node or ledger does not show it.

        A compacted ledger that was replaced: brokers delete it when the mark-delete that names the new one has
        succeeded, and a mark-delete that follows another within a second is only kept in memory for up to a minute
        (``markDeleteLimiter``). And a bucket of delayed messages, whose property was left (`left_buckets`). What a
        sidecar was about to delete, ever, is no such ledger.
        """
        if not found:
            return []
        judged = {outcome.ledger_id for outcome in self._log.all if outcome.step == "judged"}
        left_buckets = TransactionLog(self._workload.cluster).left_buckets()
        return [
            ledger_id
            for ledger_id, paths in found.items()
            if ledger_id not in judged
            and (ledger_id in left_buckets or all(path.endswith(f"/{COMPACTION_CURSOR}") for path in paths))
        ]

    def _is_damaged(self, paths: Iterable[str]) -> bool:
        roots = [f"{top}/{namespace}/" for top in (MANAGED_LEDGERS, SCHEMAS) for namespace in self._damaged]
        return all(path.startswith(tuple(roots)) for path in paths)

    def _check_no_orphan_we_know_of(self) -> None:
        ended = self._finals_by_ledger()
        excused = {ledger_id for ledger_id in self._accepted if ended[ledger_id][-1].reason in NOT_OURS_TO_DELETE}
        orphans = (self._accepted - excused) & self.reference_scan().orphans
        if orphans:
            orphans &= self.reference_scan().orphans
        assert not orphans, f"orphans that a sidecar was told about: {sorted(orphans)}"


def _demand(look: Callable[[], Found | None], what: str) -> Found:
    """As `until`; but a record without an end may be a lost one, which no second try excuses."""
    try:
        return until(look, what)
    except NotInTime as error:
        raise AssertionError(f"L1: {error}") from None


def _claims_to_be_in(data: bytes, prefix: str) -> bool:
    claim = read_claim(decode_ledger_metadata(data).custom_metadata)
    return isinstance(claim, (DataClaim, CursorClaim)) and claim.managed_ledger.startswith(prefix)
