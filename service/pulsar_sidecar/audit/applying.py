"""Applying a plan: its deletable ledgers become pending deletions, each exactly once, in the order of the plan.

Invariant: nothing here deletes anything. What is sent are records, and the deletion service proves every one of them
again. Nothing is sent before the whole plan was compared with the hash that was approved. How far a plan was applied is
a node in the metadata store, so that every machine and every copy of an audit agrees: ``done_rows`` rows from the
beginning were durably sent, whatever happens; of later ones some may have been.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.analysis.formatting import format_age, format_time
from pulsar_sidecar.audit.requests import EXCLUSIVE
from pulsar_sidecar.audit.results.plans import PlanDigest
from pulsar_sidecar.audit.results.summaries import AuditSummary, PlanSummary
from pulsar_sidecar.ledger_ownership.claims import LedgerKind
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import AlreadyExistsError, ConflictError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.progress import ReportCount

_KINDS: Final = [kind.value for kind in LedgerKind if kind not in (LedgerKind.LOG_SEGMENT, LedgerKind.UNKNOWN)]

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""The deletable rows in order, with `audit.results.plans.PLAN_COLUMNS`; each call begins again."""


@dataclass(frozen=True, slots=True)
class DeletableLedger:
    """One row of a plan, as the deletion service wants to know it.

    ``kind`` is a `ledger_ownership.claims.LedgerKind`, ``topic`` a full name, ``cursor_name`` decoded; ``row`` is its
    place in the plan, which becomes its sequence id.
    """

    row: int
    ledger_id: int
    kind: str
    topic: str
    cursor_name: str | None
    schema_id: str | None
    ctime_ms: int | None
    length_bytes: int | None


@dataclass(frozen=True, slots=True)
class SentRows:
    """What became of rows: sent now, or by an earlier run."""

    now: int = 0
    earlier: int = 0

    def __add__(self, other: "SentRows") -> "SentRows":
        return SentRows(self.now + other.now, self.earlier + other.earlier)


class DeletableSender(Protocol):
    """Records ledgers with the deletion service, each row once however often it is sent (PIP-6)."""

    def send(self, rows: Sequence[DeletableLedger]) -> SentRows:
        """Have all of them durably recorded; rows ascend, within a call and from call to call.

        Raises:
            TemporaryError: not all of them are; sending them again is safe.
        """


@decodable
class PlanProgress(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the node holds.

    Attributes:
        written_ms: by the clock of the machine that wrote it, which also stamps the messages it sends.
    """

    audit_id: str
    rows: int
    done_rows: int
    written_ms: int

    @property
    def finished(self) -> bool:
        return self.done_rows >= self.rows


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """The progress with the node's version and time of its last change.

    Attributes:
        first_use: no row of this plan was sent yet.
        changed_ms: by the store's clock.
    """

    progress: PlanProgress
    version: NodeVersion
    changed_ms: int
    first_use: bool

    def since_ms(self) -> int:
        """No row that `PlanProgress.done_rows` leaves open was sent before this moment, whichever clock stamped it."""
        return min(self.changed_ms, self.progress.written_ms)


def begin(store: MetadataStore, plan_sha256: str, audit_id: str, rows: int, now_ms: int) -> StoredProgress:
    """The plan's progress, begun if there is none; `TemporaryError` if its node cannot be read or understood."""
    path = progress_path(plan_sha256)
    progress = PlanProgress(audit_id, rows, 0, now_ms)
    try:
        node = store.create(path, msgspec.json.encode(progress))
    except AlreadyExistsError:
        return _existing(store, path)
    return StoredProgress(progress, node.version, node.created_ms, first_use=True)


def advance(
    store: MetadataStore, plan_sha256: str, held: StoredProgress, done_rows: int, now_ms: int
) -> StoredProgress:
    """Note that so many rows are done; `ConflictError` if another process applies the same plan."""
    progress = msgspec.structs.replace(held.progress, done_rows=done_rows, written_ms=now_ms)
    version = store.write(progress_path(plan_sha256), msgspec.json.encode(progress), held.version)
    return replace(held, progress=progress, version=version, first_use=False)


def progress_of(store: MetadataStore, plan_sha256: str) -> StoredProgress | None:
    """How far a plan was applied; None if it never was. `TemporaryError` if its node cannot be understood."""
    path = progress_path(plan_sha256)
    node = store.read(path)
    return None if node is None else _understood(node, path)


def progress_path(plan_sha256: str) -> str:
    """Where the progress of this plan is."""
    return f"/pulsar-sidecar/audit-plans/{plan_sha256}"


def _existing(store: MetadataStore, path: str) -> StoredProgress:
    node = store.read(path)
    if node is None:
        raise TemporaryError(f"{path} no longer exists; repeat the command")
    return _understood(node, path)


def _understood(node: Node, path: str) -> StoredProgress:
    try:
        progress = msgspec.json.decode(node.data, type=PlanProgress)
    except msgspec.DecodeError as error:
        raise TemporaryError(
            f"{path} cannot be decoded ({error}); inspect the node, and delete it if it is damaged"
        ) from error
    return StoredProgress(progress, node.version, node.modified_ms, first_use=False)


def verified_plan(summary: AuditSummary, batches: Batches) -> PlanSummary:
    """The plan, after each of its rows was compared with its hash.

    Raises:
        ConflictError: the audit has no plan, since a guard failed.
        InvalidInputError: the rows are not the plan's, or one of them cannot be recorded.
    """
    if summary.plan is None or not all(guard.passed for guard in summary.guards):
        failed = "; ".join(f"{each.name}: {each.explanation}" for each in summary.guards if not each.passed)
        raise ConflictError(f"this audit has no plan, because a guard failed ({failed or 'its summary names none'})")
    if summary.policy.get(EXCLUSIVE) is not True:
        raise ConflictError(
            "this audit was made without --bookkeeper-exclusive-to-cluster, so another Pulsar cluster on the same "
            "BookKeeper may own its ledgers; if this BookKeeper serves only this cluster, audit again with the option"
        )
    digest = PlanDigest(summary.audit_id, summary.instance_id)
    for batch in batches():
        _demand_recordable(batch)
        digest.add(batch)
    if digest.plan() != summary.plan:
        raise InvalidInputError("the deletable ledgers are not those of the plan in the summary; make a new audit")
    return summary.plan


def demand_approval(plan: PlanSummary, approved: str | None) -> None:
    """Refuse a plan whose hash was not approved, with `InvalidInputError`."""
    if approved is None:
        raise InvalidInputError("--execute needs --plan with the plan's hash, which a run without --execute prints")
    if approved.lower() != plan.sha256:
        raise InvalidInputError(
            f"the plan of this audit is {plan.sha256}, not the approved one; nothing was sent. "
            "Run the command without --execute to see the plan"
        )


def demand_target(summary: AuditSummary, instance_id: str, now_ms: int, max_age_ms: int) -> None:
    """Refuse another cluster, by its present id, and an audit that is too old by the store's clock.

    Raises:
        ConflictError: it is one of these.
    """
    if instance_id != summary.instance_id:
        raise ConflictError(
            f"this audit is of the BookKeeper instance {summary.instance_id}, "
            f"and the metadata store belongs to {instance_id}; nothing was sent"
        )
    age_ms = now_ms - summary.store_time_ms
    if age_ms > max_age_ms:
        raise ConflictError(
            f"this audit is {format_age(age_ms)} old ({format_time(summary.store_time_ms)}), older than "
            f"{format_age(max_age_ms)}; make a new audit, or raise --max-age-hours"
        )


def send_plan(
    plan: PlanSummary,
    held: StoredProgress,
    batches: Batches,
    store: MetadataStore,
    sender: DeletableSender,
    clock: Clock,
    pace: Callable[[int], None],
    at_once: int,
    report: ReportCount,
) -> SentRows:
    """Send what is left of a plan that was verified, ``at_once`` rows in one piece at most.

    ``pace`` is called with how many rows were sent, and waits to keep a rate. After `TemporaryError` not everything was
    sent, and the same call again resumes; `ConflictError` means that another process sends it.
    """
    done = held.progress.done_rows
    total = SentRows(earlier=done)
    report(done, plan.rows)
    ledgers = _ledgers(batches(), done)
    while piece := list(islice(ledgers, at_once)):
        total += sender.send(piece)
        done = piece[-1].row + 1
        held = advance(store, plan.sha256, held, done, clock.now_ms())
        report(done, plan.rows)
        pace(len(piece))
    return total


def _demand_recordable(batch: pa.RecordBatch) -> None:
    known = pc.is_in(batch.column("kind"), pa.array(_KINDS))
    cursors = pc.is_in(batch.column("kind"), pa.array([LedgerKind.CURSOR.value, LedgerKind.DELAYED_INDEX_BUCKET.value]))
    named = pc.or_(pc.invert(cursors), pc.is_valid(batch.column("cursor_name")))
    for fine, why in (
        (known, "is of a kind that is never deleted"),
        (pc.is_valid(batch.column("topic")), "has no topic"),
        (named, "has no cursor's name"),
    ):
        wrong = batch.filter(pc.invert(fine))
        if wrong.num_rows:
            raise InvalidInputError(
                f"ledger {wrong.column('ledger_id')[0].as_py()} {why}, so it cannot be recorded; make a new audit"
            )


def _ledgers(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[DeletableLedger]:
    for batch in batches:
        for row in batch.filter(pc.greater_equal(batch.column("row"), first)).to_pylist():
            yield DeletableLedger(**{name: row[name] for name in DeletableLedger.__slots__})
