"""Invariants after every test of deletion, whatever the test did to sidecars and brokers.

- S1: no referenced ledger is gone. - S2: remaining topics are readable from their first message to their last.
- L1: no accepted record is unfinished: the backlog returns to 0, no topic deletion keeps running, and each ledger that
a sidecar accepted has a final outcome. - E1: each ledger's effect happened once. - No ledger that a sidecar accepted is
left an orphan. - The protocol's model allows every step that a sidecar reported: checked at the end of the session if
the replay is on (`tests.model.conformance`).

Invariant: the oracles count everything on the cluster itself, by a scan of the metadata store and a reading of the
outcome topic from its beginning; they believe no report of a sidecar, except that its backlog is empty.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pulsar
from pulsar_sidecar.features.audit.reference_scan import ReferenceScan, demand_complete, scan_references
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.claims import CursorClaim, DataClaim, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, SCHEMAS, managed_ledger_path

from tests.cluster.patience import Found, NotInTime, until
from tests.cluster.topics import Workload
from tests.cluster.transaction_log import TransactionLog
from tests.model import conformance

OUTCOME_TOPIC = parse_topic_name("persistent://pulsar/system/__ledger_deletion-OUTCOME")
FINAL = frozenset({"deleted", "kept", "rejected", "dead-letter", "set-aside"})
NOT_OURS_TO_DELETE = frozenset({"not-pulsars", "unknown-component"})
"""Reasons why an orphan remains."""

_READ_MS = 60_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the outcome topic; ``step`` is judged, settled, undeleted or topic-deletion."""

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
    """The sidecar's calls that the oracles need."""

    def status(self) -> dict[str, Any]: ...

    def log(self) -> str: ...


class OutcomeLog:
    """The outcome topic, read continuously from its beginning."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._reader: pulsar.Reader | None = None
        self._read: list[Outcome] = []
        self._seen: set[bytes] = set()

    @property
    def all(self) -> list[Outcome]:
        """All outcomes so far; none before the first sidecar has created the topic."""
        node = managed_ledger_path(OUTCOME_TOPIC.managed_ledger_name)
        if self._reader is None and self._workload.store.read(node) is None:
            return []
        until(self._has_caught_up, "the outcome topic can be read")
        return self._read

    def _has_caught_up(self) -> bool:
        """Read new outcomes; return False if the connection broke, so that reading restarts from the beginning."""
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
                # After a broken connection a client resends stored messages, and brokers deduplicate no system topic.
                # A message names the sidecar, its step and the millisecond, so this is the same effect again.
                continue
            self._seen.add(payload)
            document = json.loads(payload)
            for entry in document["entries"]:
                self._read.append(Outcome(document["step"], document["sidecar"], entry))

    def since(self, mark: int) -> list[Outcome]:
        """Return the outcomes after a mark, a former length of `all`."""
        return self.all[mark:]

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Oracles:
    """Oracles of a test; call `check` at its end."""

    def __init__(self, workload: Workload, log: OutcomeLog) -> None:
        self._workload = workload
        self._log = log
        self._mark = len(log.all)
        self._known_dangling = self.reference_scan().dangling
        self._accepted: set[LedgerId] = set()
        self._kept: dict[TopicName, Sequence[bytes]] = {}
        self._damaged: set[str] = set()

    def add_accepted(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Record that a sidecar has accepted records of these ledgers."""
        self._accepted.update(ledger_ids)

    @property
    def accepted(self) -> int:
        """Number of ledgers of which a sidecar has accepted a record."""
        return len(self._accepted)

    def keeps(self, topic: TopicName, payloads: Sequence[bytes]) -> None:
        """Expect that a topic stays, with exactly these messages."""
        self._kept[topic] = payloads

    def expect_broken_topics_in(self, namespace: str) -> None:
        """Expect broken topics in a namespace, because the test itself damages them."""
        self._damaged.add(namespace)

    def reference_scan(self) -> ReferenceScan:
        """Return a complete scan of the references, retried while nodes vanish during it."""

        def count() -> ReferenceScan | None:
            try:
                return scan_references(self._workload.tree, self._workload.compacted)
            except TemporaryError:
                return None

        scan = until(count, "a scan is complete")
        demand_complete(scan)
        return scan

    def leaks_in(self, namespace: str) -> tuple[frozenset[LedgerId], frozenset[LedgerId]]:
        """Return the namespace's unreferenced data and cursor ledgers, and its dangling references."""
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
        """Outcomes of this test so far."""
        return self._log.since(self._mark)

    def finals(self, ledger_id: int) -> list[Outcome]:
        """Return the final outcomes of a ledger so far in this test."""
        return self._finals_by_ledger().get(LedgerId(ledger_id), [])

    def _finals_by_ledger(self) -> dict[LedgerId, list[Outcome]]:
        found: dict[LedgerId, list[Outcome]] = {}
        for outcome in self.outcomes:
            if outcome.step == "settled" and outcome.decision in FINAL and outcome.ledger_id is not None:
                found.setdefault(outcome.ledger_id, []).append(outcome)
        return found

    def wait_for_finals(self, ledger_ids: Iterable[int]) -> dict[int, Outcome]:
        """Wait for final outcomes of all ledgers and return the newest of each."""
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
        """Wait until no record is pending and no deletion of a topic or a namespace runs."""

        started = time.monotonic()

        def is_drained() -> bool:
            status = sidecar.status()
            inflight = status["inflight"]
            if inflight is None or inflight["ageMs"] / 1000 > time.monotonic() - started:
                return False  # measured before the wait began
            return (inflight["count"], status["runningTopicDeletions"], status["runningNamespaceDeletions"]) == (
                0,
                0,
                0,
            )

        _demand(is_drained, f"nothing waits any more\n{sidecar.log()}")

    def check(self, sidecar: RunningSidecar) -> None:
        """Check all invariants with a running ``sidecar``."""
        self.wait_until_drained(sidecar)
        self.wait_for_finals(self._accepted)
        self._check_effects_happened_once()
        self._check_nothing_referenced_is_gone()
        self._check_kept_topics_are_readable()
        self._check_no_known_orphans()
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
        # A ledger that appears, or a topic that vanishes, during a scan is no finding: only two scans prove one.
        suspects = self.reference_scan().dangling - self._known_dangling
        if suspects:
            again = self.reference_scan()
            suspects &= again.dangling
            found = {ledger_id: again.references[ledger_id] for ledger_id in suspects}
            found = {ledger_id: paths for ledger_id, paths in found.items() if not self._is_damaged(paths)}
            for ledger_id in self._deleted_by_brokers(found):
                del found[ledger_id]
            assert not found, f"S1: referenced ledgers are gone: {found}"

    def _check_kept_topics_are_readable(self) -> None:
        for topic, payloads in self._kept.items():
            (read,) = _demand(partial(self._read, topic), f"{topic} can be read", "S2")
            assert read == list(payloads), f"S2: {topic} has {len(payloads)} messages and {len(read)} were read"

    def _read(self, topic: TopicName) -> tuple[list[bytes]] | None:
        """Return the topic's messages; None while its bookies are down."""
        try:
            return (self._workload.read_all(topic),)
        except pulsar.PulsarException:
            return None

    def _deleted_by_brokers(self, found: Mapping[LedgerId, Iterable[str]]) -> list[LedgerId]:
        """Return the ledgers that a broker has deleted before a cursor's node or ledger shows it.

        They are replaced compacted ledgers: brokers delete them after the mark-delete that names the new one, and a
        mark-delete within a second of another one stays in memory for up to a minute (``markDeleteLimiter``). And
        buckets of delayed messages whose property was left (`left_buckets`). A ledger that a sidecar ever judged is
        never among them.
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

    def _check_no_known_orphans(self) -> None:
        ended = self._finals_by_ledger()
        excused = {ledger_id for ledger_id in self._accepted if ended[ledger_id][-1].reason in NOT_OURS_TO_DELETE}
        orphans = (self._accepted - excused) & self.reference_scan().orphans
        if orphans:
            orphans &= self.reference_scan().orphans
        assert not orphans, f"orphans that a sidecar was told about: {sorted(orphans)}"


def _demand(look: Callable[[], Found | None], what: str, law: str = "L1") -> Found:
    """Wait like `until`, but fail without a second try, because an unfinished record or a message may be lost."""
    try:
        return until(look, what)
    except NotInTime as error:
        raise AssertionError(f"{law}: {error}") from None


def _claims_to_be_in(data: bytes, prefix: str) -> bool:
    claim = read_claim(decode_ledger_metadata(data).custom_metadata)
    return isinstance(claim, (DataClaim, CursorClaim)) and claim.managed_ledger.startswith(prefix)
