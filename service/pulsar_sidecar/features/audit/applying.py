"""Application of a plan: its deletable ledgers become pending deletions, each exactly once, in the order of the plan.

Invariant: nothing here deletes a ledger. The sidecar sends records, and the deletion service proves each of them again.
It sends nothing before it has compared the whole plan with the approved hash.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.plan_progress import StoredProgress, advance
from pulsar_sidecar.features.audit.requests import EXCLUSIVE
from pulsar_sidecar.features.audit.results.plans import PlanDigest, is_of_copies
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, PlanSummary
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.progress import ReportCount
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.reports.formatting import format_age, format_time

_KINDS: Final = [kind.value for kind in LedgerKind if kind not in (LedgerKind.LOG_SEGMENT, LedgerKind.UNKNOWN)]

Batches = Callable[[], Iterable[pa.RecordBatch]]
"""Return the deletable rows in order, with `PLAN_COLUMNS` or `COPY_COLUMNS`; each call starts from the first row."""


@dataclass(frozen=True, slots=True)
class DeletableLedger:
    """Row of a plan, in the form that the deletion service takes.

    ``kind`` is a `ownership.claims.LedgerKind`, ``topic`` a full name, ``cursor_name`` decoded; ``row`` is its
    place in the plan, which becomes its sequence id. A copy in tiered storage has the ``attempt`` that wrote it, and
    its ``driver``, ``place`` and ``region`` (`audit.results.tables.OFFLOADED_LEDGERS`).
    """

    row: int
    ledger_id: int
    topic: str
    length_bytes: int | None
    kind: str = LedgerKind.DATA.value
    cursor_name: str | None = None
    schema_id: str | None = None
    ctime_ms: int | None = None
    czxid: int | None = None
    attempt: str | None = None
    driver: str = ""
    place: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class SentRows:
    """Numbers of rows that were sent now and by earlier runs."""

    now: int = 0
    earlier: int = 0

    def __add__(self, other: "SentRows") -> "SentRows":
        return SentRows(self.now + other.now, self.earlier + other.earlier)


def verified_plan(summary: AuditSummary, batches: Batches) -> PlanSummary:
    """Return the plan after comparing each of its rows with its hash.

    `ConflictError`: the audit has no plan, because a guard failed. `InvalidInputError`: the rows are not the plan's, or
    one of them cannot be recorded.
    """
    if summary.plan is None or not all(guard.passed for guard in summary.guards):
        failed = "; ".join(f"{each.name}: {each.explanation}" for each in summary.guards if not each.passed)
        raise ConflictError(f"this audit has no plan, because a guard failed ({failed or 'its summary names none'})")
    if summary.policy.get(EXCLUSIVE) is not True:
        raise ConflictError(
            "this audit ran without --bookkeeper-exclusive-to-cluster, so another Pulsar cluster on the same "
            "BookKeeper may own its ledgers; if this BookKeeper serves only this cluster, audit again with the option"
        )
    digest = PlanDigest(summary.audit_id, summary.instance_id)
    for batch in batches():
        _demand_recordable(batch)
        digest.add(batch)
    if digest.plan() != summary.plan:
        raise InvalidInputError("the deletable ledgers are not those of the plan in the summary; run a new audit")
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
    """Refuse, as `ConflictError`, an audit of another cluster (by its present id) or too old by the store's clock."""
    if instance_id != summary.instance_id:
        raise ConflictError(
            f"this audit is of the BookKeeper instance {summary.instance_id}, "
            f"and the metadata store belongs to {instance_id}; nothing was sent"
        )
    age_ms = now_ms - summary.store_time_ms
    if age_ms > max_age_ms:
        raise ConflictError(
            f"this audit is {format_age(age_ms)} old ({format_time(summary.store_time_ms)}), older than "
            f"{format_age(max_age_ms)}; run a new audit, or raise --max-age-hours"
        )


def send_plan(
    plan: PlanSummary,
    held: StoredProgress,
    batches: Batches,
    store: MetadataStore,
    send: Callable[[Sequence[DeletableLedger]], SentRows],
    clock: Clock,
    pace: Callable[[int], None],
    at_once: int,
    report: ReportCount,
) -> SentRows:
    """Send the rest of a verified plan, at most ``at_once`` rows at a time.

    ``send`` records rows durably, each once however often it is sent (PIP-6); they ascend from call to call. ``pace``
    takes the number of rows just sent and waits to keep a rate. After `TemporaryError` some rows are not sent, and the
    same call resumes; `ConflictError` means that another process sends the plan.
    """
    done = held.progress.done_rows
    total = SentRows(earlier=done)
    report(done, plan.rows)
    ledgers = _ledgers(batches(), done)
    while piece := list(islice(ledgers, at_once)):
        total += send(piece)
        done = piece[-1].row + 1
        held = advance(store, plan.sha256, held, done, clock.now_ms())
        report(done, plan.rows)
        pace(len(piece))
    return total


def _demand_recordable(batch: pa.RecordBatch) -> None:
    if is_of_copies(batch):
        for column in ("topic", "driver", "region"):
            if batch.column(column).null_count:
                raise InvalidInputError(
                    f"a copy of the plan has no {column}, so it cannot be recorded; run a new audit"
                )
        return
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
                f"ledger {wrong.column('ledger_id')[0].as_py()} {why}, so it cannot be recorded; run a new audit"
            )


def _ledgers(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[DeletableLedger]:
    for batch in batches:
        for row in batch.filter(pc.greater_equal(batch.column("row"), first)).to_pylist():
            yield DeletableLedger(**{name: row[name] for name in DeletableLedger.__slots__ if name in row})
