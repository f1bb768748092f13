"""Applying a plan: its deletable ledgers become pending deletions, each exactly once, in the order of the plan.

Invariant: nothing here deletes anything. What is sent are records, and the deletion service proves every one of them
again. Nothing is sent before the whole plan was compared with the hash that was approved.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.analysis.formatting import format_age, format_time
from pulsar_sidecar.audit.plan_progress import StoredProgress, advance
from pulsar_sidecar.audit.requests import EXCLUSIVE
from pulsar_sidecar.audit.results.plans import PlanDigest
from pulsar_sidecar.audit.results.summaries import AuditSummary, PlanSummary
from pulsar_sidecar.ledger_ownership.claims import LedgerKind
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.metadata import MetadataStore
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
