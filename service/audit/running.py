"""The embedded engine: one audit on one machine, without Spark.

Ledger ids are arrays of numbers and the comparison is between arrays; only ledgers that nothing references are decoded
and judged one at a time. Invariant: a ledger is a candidate only if it is in the listing and among the dump's own
ledgers, and the tables appear all at once or not at all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.audit.ages import age_label
from service.audit.batch_work import (
    DecodedPart,
    Sized,
    age_order,
    decode_part,
    dumped_ids,
    listed_ids,
    lists_naming,
    nodes_named,
    read_ledgers,
)
from service.audit.causes import OwnerNode, owner_node
from service.audit.decoding import (
    NODE_COLUMNS,
    REFERENCES,
    Reference,
    decode_cursor_ledgers,
    decode_log_segments,
    references_batch,
    unread_compaction_cursors,
)
from service.audit.dumping import LEDGERS_LEFT_OUT
from service.audit.extracts import extract_of
from service.audit.findings import (
    LEDGER_NODE_COLUMNS,
    LISTED_LEDGER_COLUMNS,
    Cases,
    earlier_looks,
    is_condemned,
    judge_cases,
    numbered,
    read_cases,
    withheld,
)
from service.audit.guards import Earlier, demand_fitting, demand_plausible, guards, trusted
from service.audit.judging import EarlierLook, Judge
from service.audit.ledger_lists import Mask, Numbers
from service.audit.manifests import Manifest
from service.audit.metrics_text import METRICS_NAME, metrics_text
from service.audit.missing import missing_table
from service.audit.plans import PlanDigest
from service.audit.policies import Policy
from service.audit.ports import AuditInputs, Say, TablesOutput
from service.audit.reporting import REPORT_NAME, report_html
from service.audit.shields import Damage, Shields
from service.audit.summaries import SUMMARY_NAME, AuditSummary, Count, Engine, Guard, Input, Plan
from service.audit.summing_up import About, Found, as_of_ms, audit_id, failed, summarize, unseen
from service.audit.tables import ORPHAN_LEDGERS, UNATTRIBUTED_LEDGERS, Subtree, Table
from service.audit.usage import (
    counts_of_rows,
    counts_of_usage,
    loaded_topics,
    named_usage,
    single_usage,
    usage_table,
    usage_taken_off,
)
from service.ledger_ownership.paths import ledger_path
from service.model.ids import LedgerId

AUDIT_TABLES = (Table.ORPHAN_LEDGERS, Table.MISSING_LEDGERS, Table.UNATTRIBUTED_LEDGERS, Table.LEDGER_USAGE)

_OWNER_COLUMNS = ("path", "value", "version", "mzxid")
_CASES_AT_ONCE = 16_384

OpenAudit = Callable[[tuple[Table, ...], str], AbstractContextManager[TablesOutput]]
"""Begins an audit's directory: its tables and the partition they are written under."""


@dataclass(frozen=True, slots=True)
class EarlierAudit:
    """The audit before: its summary, and what of its tables a later one looks at.

    Attributes:
        orphans: answers its orphans' rows of these ledgers.
    """

    summary: AuditSummary
    references: Mapping[str, int]
    named: Input
    orphans: Callable[[pa.Array], pa.Table]


@dataclass(frozen=True, slots=True)
class Order:
    """How to audit, beside the inputs; ``place`` is the directory as its user wrote it."""

    policy: Policy
    tool_version: str
    place: str


def run_audit(
    inputs: AuditInputs, earlier: EarlierAudit | None, open_audit: OpenAudit, order: Order, say: Say
) -> AuditSummary:
    """Audit.

    Raises:
        InvalidInputError: no audit can be made of these inputs; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    demand_fitting(inputs.dump, inputs.listing, None if earlier is None else earlier.summary, order.policy)
    named = dict(inputs.inputs) if earlier is None else {**inputs.inputs, "previous": earlier.named}
    about = About(
        audit_id(inputs.dump, named, order.policy),
        Engine.EMBEDDED,
        order.tool_version,
        inputs.dump,
        named,
        order.policy,
        None if earlier is None else Earlier(earlier.summary, earlier.references),
    )
    findings = _Finding(inputs, about, earlier, say).find()
    with open_audit(AUDIT_TABLES, f"audit_id={about.audit_id}") as output:
        return _write(output, about, inputs.listing, findings, order)


@dataclass(frozen=True, slots=True)
class _Findings:
    orphans: pa.Table
    missing: pa.Table
    unattributed: pa.Table
    usage: pa.Table
    found: Found
    guards: tuple[Guard, ...]
    seen: "_Seen"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the dump references.

    Attributes:
        others: every reference that is no element of a managed ledger's list, once.
        referenced: every referenced ledger, with repetitions.
        log_segments_unread: DistributedLog's records that name no ledger.
    """

    decoded: Sequence[DecodedPart]
    others: Sequence[Reference]
    referenced: Numbers
    shields: Shields
    log_segments_unread: int


class _Finding:
    """One audit's way from the inputs to the tables."""

    def __init__(self, inputs: AuditInputs, about: About, earlier: EarlierAudit | None, say: Say) -> None:
        self._inputs = inputs
        self._about = about
        self._earlier = earlier
        self._say = say
        self._root = inputs.dump.ledgers_root
        self._own_ledgers = LEDGERS_LEFT_OUT not in inputs.dump.left_out

    def find(self) -> _Findings:
        listed = np.concatenate([_NONE, *self._inputs.ledgers(["ledger_id"], listed_ids)])
        dumped, unread_directories = self._dumped(listed)
        self._say(f"{len(listed):,} ledgers in the listing, {int((dumped >= 0).sum()):,} in the dump")
        seen = self._seen()
        self._say(f"{len(seen.referenced):,} references")
        candidates = _among(dumped, listed) & ~_among(dumped, seen.referenced)
        gone = self._missing_ids(seen.referenced, listed, dumped, unread_directories)
        missing = self._missing(gone, seen.others)
        lost = set(gone.tolist())
        others = [each for each in seen.others if each.ledger_id not in lost]
        wanted = candidates | _among(dumped, _ids_of(others))
        lengths, cases = self._read_wanted(dumped, candidates, wanted)
        usage = _usage(seen, others, lengths, missing)
        orphans, unattributed = self._judge(cases, seen.shields)
        found = _found(listed, dumped, seen.referenced, usage, orphans, unattributed, missing)
        demand_plausible(found.measured(), self._inputs.dump)
        passed = self._guards(found)
        orphans = numbered(withheld(orphans, failed(passed)) if failed(passed) else orphans)
        found = replace(found, orphans_by=_orphans_by(orphans))
        return _Findings(orphans, missing_table(missing), unattributed, usage, found, passed, seen)

    def _guards(self, found: Found) -> tuple[Guard, ...]:
        manifests = (self._inputs.dump, self._inputs.listing)
        return guards(*manifests, found.measured(), self._about.earlier, self._about.policy)

    def _seen(self) -> "_Seen":
        """Everything in the dump that references a ledger, or may."""
        decoded = [
            part
            for subtree in (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS)
            for part in self._inputs.nodes(subtree, NODE_COLUMNS, decode_part)
        ]
        from_ledgers, damages = self._cursor_ledgers(decoded)
        segments, unread = decode_log_segments(self._inputs.table(Table.LOG_SEGMENTS).to_pylist())
        others = list(dict.fromkeys([*(each for part in decoded for each in part.others), *from_ledgers, *segments]))
        shields = Shields([*(each for part in decoded for each in part.damages), *damages])
        referenced = np.concatenate([*(part.ids for part in decoded), _ids_of(others)])
        return _Seen(decoded, others, referenced, shields, unread)

    def _dumped(self, listed: Numbers) -> tuple[Numbers, list[str]]:
        """The dump's own ledgers in the order of its rows, -1 for a row that is none; the listing's if it has none."""
        if not self._own_ledgers:
            return listed, []
        parts = list(self._inputs.nodes(Subtree.LEDGERS, ["path", "unreadable"], partial(dumped_ids, self._root)))
        return np.concatenate([_NONE, *(ids for ids, _ in parts)]), [path for _, paths in parts for path in paths]

    def _cursor_ledgers(self, decoded: Sequence[DecodedPart]) -> tuple[list[Reference], list[Damage]]:
        rows = self._inputs.table(Table.CURSOR_LEDGERS).to_pylist()
        references, damages = decode_cursor_ledgers(rows)
        compaction = [path for part in decoded for path in part.compaction_cursors]
        return references, [*damages, *unread_compaction_cursors(compaction, (row["cursor_path"] for row in rows))]

    def _missing_ids(self, referenced: Numbers, listed: Numbers, dumped: Numbers, unread: Sequence[str]) -> Numbers:
        gone = np.unique(referenced[~(_among(referenced, listed) | _among(referenced, dumped))])
        if not unread:
            return gone
        # A ledger below a directory that could not be read may be there.
        below = tuple(f"{path}/" for path in unread)
        seen = [not ledger_path(LedgerId(ledger_id), self._root).startswith(below) for ledger_id in gone.tolist()]
        return gone[np.array(seen, np.bool_)]

    def _missing(self, gone: Numbers, others: Sequence[Reference]) -> pa.Table:
        if not len(gone):
            return REFERENCES.empty_table()
        wanted = set(gone.tolist())
        single = references_batch(each for each in others if each.ledger_id in wanted)
        listed = self._inputs.nodes(Subtree.MANAGED_LEDGERS, NODE_COLUMNS, partial(lists_naming, gone))
        odd = self._inputs.nodes(Subtree.SCHEMAS, NODE_COLUMNS, partial(lists_naming, gone))
        return pa.Table.from_batches([single, *listed, *odd], REFERENCES)

    def _read_wanted(
        self, dumped: Numbers, candidates: Mask, wanted: Mask
    ) -> tuple[dict[int, int | None], list[Cases]]:
        positions = np.flatnonzero(wanted)
        work = partial(read_ledgers, self._root, np.unique(dumped[candidates]))
        if self._own_ledgers:
            answers = self._inputs.nodes_at(Subtree.LEDGERS, LEDGER_NODE_COLUMNS, positions, work)
        else:
            answers = self._inputs.ledgers_at(LISTED_LEDGER_COLUMNS, positions, work)
        sizes: list[Sized] = []
        cases = []
        for sized, batch in answers:
            sizes += sized
            if batch.num_rows:
                cases.append(read_cases(batch))
        return _newest_sizes(sizes), _without_repetitions(cases)

    def _judge(self, cases: Sequence[Cases], shields: Shields) -> tuple[pa.Table, pa.Table]:
        nodes = self._owner_nodes(set().union(*(each.owner_paths() for each in cases)))
        judge = Judge(as_of_ms(self._inputs.dump), self._about.policy, shields)
        answers = [judge_cases(judge, each, nodes, self._earlier_looks(each)) for each in cases]
        self._say(f"{sum(len(each.rows) for each in cases):,} ledgers that nothing references were judged")
        return (
            pa.Table.from_batches([orphans for orphans, _ in answers], ORPHAN_LEDGERS),
            pa.Table.from_batches([others for _, others in answers], UNATTRIBUTED_LEDGERS).sort_by("ledger_id"),
        )

    def _owner_nodes(self, paths: set[str]) -> dict[str, OwnerNode]:
        wanted = pa.array(sorted(paths), pa.string())
        batches = [
            batch
            for subtree in (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS)
            for batch in self._inputs.nodes(subtree, _OWNER_COLUMNS, partial(nodes_named, wanted))
        ]
        return {node["path"]: owner_node(node) for batch in batches for node in batch.to_pylist()}

    def _earlier_looks(self, cases: Cases) -> dict[int, EarlierLook]:
        if self._earlier is None or not trusted(self._earlier.summary):
            return {}
        ids = pa.array([row["ledger_id"] for row in cases.rows], pa.int64())
        return earlier_looks(self._earlier.orphans(ids))


_NONE: Numbers = np.zeros(0, np.int64)


# --- small steps ---------------------------------------------------------------------------------------------------


def _ids_of(references: Sequence[Reference]) -> Numbers:
    return np.fromiter((each.ledger_id for each in references), np.int64, len(references))


def _among(ids: Numbers, others: Numbers) -> Mask:
    return np.isin(ids, others)


def _merged(cursors: Iterator[Mapping[str, bool]]) -> dict[str, bool]:
    merged: dict[str, bool] = {}
    for part in cursors:
        for name, in_ledger in part.items():
            merged[name] = merged.get(name, False) or in_ledger
    return merged


def _newest_sizes(sizes: Sequence[Sized]) -> dict[int, int | None]:
    """A ledger that was deleted and made again while the dump was made is in it twice: the newer one counts."""
    return {each[0]: each[-1] for each in sorted(sizes, key=lambda each: each[:3])}


def _without_repetitions(cases: Sequence[Cases]) -> list[Cases]:
    """The same for candidates."""
    newest: dict[int, tuple[tuple[int, int], int, int]] = {}
    for part, each in enumerate(cases):
        for number, row in enumerate(each.rows):
            key = (age_order(row), part, number)
            newest[row["ledger_id"]] = max(newest.get(row["ledger_id"], key), key)
    chosen = {key[1:] for key in newest.values()}
    if len(chosen) == sum(len(each.rows) for each in cases):
        return list(cases)
    kept = []
    for part, each in enumerate(cases):
        numbers = [number for number in range(len(each.rows)) if (part, number) in chosen]
        kept.append(Cases([each.rows[n] for n in numbers], [each.readings[n] for n in numbers]))
    return kept


def _usage(seen: _Seen, others: Sequence[Reference], lengths: Mapping[int, int | None], missing: pa.Table) -> pa.Table:
    taken_off = [usage_taken_off(batch) for batch in missing.to_batches()]
    named = map(named_usage, [*(part.usage for part in seen.decoded), single_usage(others, lengths), *taken_off])
    return usage_table(named, loaded_topics(_merged(part.cursors for part in seen.decoded)))


def _found(
    listed: Numbers,
    dumped: Numbers,
    referenced: Numbers,
    usage: pa.Table,
    orphans: pa.Table,
    unattributed: pa.Table,
    missing: pa.Table,
) -> Found:
    return Found(
        listed=len(listed),
        in_dump=int(_among(listed, dumped).sum()),
        referenced=int(_among(listed, referenced).sum()),
        usage_by_kind=counts_of_usage(usage, "kind"),
        usage_by_tenant=counts_of_usage(usage, "tenant"),
        orphans_by=_orphans_by(orphans),
        unattributed=Count(unattributed.num_rows, pc.sum(unattributed.column("length_bytes")).as_py() or 0),
        missing=missing.num_rows,
    )


def _orphans_by(orphans: pa.Table) -> dict[str, dict[str, Count]]:
    labels = pa.array([age_label(age_ms) for age_ms in orphans.column("age_ms").to_pylist()], pa.string())
    aged = pa.table({"age": labels, "length_bytes": orphans.column("length_bytes")})
    by_column = {name: counts_of_rows(orphans, name) for name in ("standing", "kind", "cause", "tenant")}
    return {**by_column, "age": counts_of_rows(aged, "age")}


def _write(output: TablesOutput, about: About, listing: Manifest, findings: _Findings, order: Order) -> AuditSummary:
    tables = {
        Table.ORPHAN_LEDGERS: findings.orphans,
        Table.MISSING_LEDGERS: findings.missing,
        Table.UNATTRIBUTED_LEDGERS: findings.unattributed,
        Table.LEDGER_USAGE: findings.usage,
    }
    for table, rows in tables.items():
        for batch in rows.to_batches():
            output.write(table, batch)
    files = {file.path: file.sha256 for file in output.close_tables()}
    seen = findings.seen
    not_seen = unseen(seen.shields, about.dump, listing, seen.log_segments_unread, findings.found.missing)
    plan = None if failed(findings.guards) else _plan(about, findings.orphans)
    summary = summarize(about, findings.found, findings.guards, not_seen, plan, files)
    extract = extract_of(findings.orphans, findings.missing, findings.unattributed, findings.usage)
    output.write_text(REPORT_NAME, report_html(summary, extract, place=order.place))
    output.write_text(METRICS_NAME, metrics_text(summary))
    output.finish(SUMMARY_NAME, summary.document())
    return summary


def _plan(about: About, orphans: pa.Table) -> Plan:
    assert about.dump.instance_id is not None
    digest = PlanDigest(about.audit_id, about.dump.instance_id)
    for batch in orphans.to_batches():
        digest.add(batch.filter(is_condemned(batch)))
    return digest.plan()
