"""Embedded engine: one audit on one machine, from its inputs to its tables.

Ledger ids are arrays of numbers and comparisons are between arrays; only unreferenced ledgers are decoded and judged
one at a time. Invariant: a ledger is a candidate only if it is in the listing and among the dump's own ledgers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import Ids, IdTable, LedgerSets, Numbers
from pulsar_sidecar.features.audit.columnar.reader import SINGLES, ColumnReader
from pulsar_sidecar.features.audit.engine.admin_nodes import AdminFacts, admin_facts, dangers
from pulsar_sidecar.features.audit.engine.candidates import (
    OWNER_COLUMNS,
    OwnerNode,
    node_marks,
    owner_nodes,
)
from pulsar_sidecar.features.audit.engine.decoding import (
    NODE_COLUMNS,
    REFERENCES,
    DecodedPart,
    decode_cursor_ledgers,
    decode_log_segments,
    decode_part,
    dumped_ids,
    listed_ids,
    lists_naming,
    single_references,
    singles_batch,
    unread_compaction_cursors,
)
from pulsar_sidecar.features.audit.engine.judging import (
    SIZES,
    WRITES,
    Case,
    Judge,
    is_deletable,
    judge_cases,
    newest_sizes,
    number_deletable,
    read_ledgers,
    unpack_cases,
    withhold_deletable,
)
from pulsar_sidecar.features.audit.engine.leftover_nodes import (
    Suspects,
    present_paths,
    schemas_without_ledgers,
    under_replication_marks,
)
from pulsar_sidecar.features.audit.engine.offloaded import (
    COPIES,
    NO_EARLIER_COPIES,
    ComparedCopies,
    OffloadFacts,
    compare_tables,
    not_whole,
    numbered_copies,
    offload_summary,
    paths_of_unreferenced,
    with_statuses,
)
from pulsar_sidecar.features.audit.engine.packed_rows import PackedRows
from pulsar_sidecar.features.audit.engine.protections import unknown_subtrees
from pulsar_sidecar.features.audit.engine.running import (
    AUDIT_TABLES,
    AuditFindings,
    AuditOptions,
    WrittenTables,
    as_of_ms,
)
from pulsar_sidecar.features.audit.engine.usage import (
    count_of_lengths,
    counts_of_rows,
    counts_of_usage,
    missing_rows,
    negative_usage,
    single_usage,
    usage_table,
    without_replaced,
    without_unread,
)
from pulsar_sidecar.features.audit.ports import AuditInputs, Beside, Part
from pulsar_sidecar.features.audit.results.guards import AuditCounts, EarlierCounts, trusted
from pulsar_sidecar.features.audit.results.plans import PlanDigest
from pulsar_sidecar.features.audit.results.report import (
    LARGEST_FIRST,
    REPORT_LEDGERS,
    REPORT_ROWS,
    report_rows_of,
    with_first_rows,
)
from pulsar_sidecar.features.audit.results.summaries import Count, Input, OffloadSummary
from pulsar_sidecar.features.audit.results.tables import (
    ORPHAN_LEDGERS,
    UNATTRIBUTED_LEDGERS,
    Subtree,
    Table,
    schemas_of,
)
from pulsar_sidecar.features.audit.sources.manifests import LEDGERS_LEFT_OUT
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.protections import Protection, UnreadableNode
from pulsar_sidecar.reports.audit_pages import age_label
from pulsar_sidecar.reports.documents import Engine
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.reports.ports import TablesOutput

_Value = TypeVar("_Value")
_NODES = (Subtree.MANAGED_LEDGERS, Subtree.SCHEMAS)
_NONE: Numbers = np.zeros(0, np.int64)
_JUDGED_AT_ONCE = 16_384
_ORDER_OF_MISSING = [(name, "ascending") for name in ("ledger_id", "kind", "referenced_by")]


OpenAudit = Callable[[Mapping[str, pa.Schema], str], AbstractContextManager[TablesOutput]]
"""Open an audit's directory for its tables, under a partition."""


@dataclass(frozen=True, slots=True)
class EarlierAudit:
    """Earlier audit: the counts that guards compare, and unreferenced copies in tiered storage, with `EARLIER_COPY`.

    ``orphans`` returns the orphans' rows of some ledgers, with `EARLIER_COLUMNS`.
    """

    earlier: EarlierCounts
    named: Input
    orphans: Callable[[pa.Array], pa.Table]
    copies: pa.Table


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of an audit in memory; orphans have no numbers yet."""

    orphans: PackedRows
    unattributed: PackedRows
    missing: pa.Table
    usage: pa.Table
    offloaded: pa.Table


class EmbeddedEngine:
    """Engine that compares a dump's references with the ledgers of dump and listing, on one machine."""

    kind = Engine.EMBEDDED

    def __init__(
        self,
        inputs: AuditInputs,
        options: AuditOptions,
        earlier: EarlierAudit | None,
        open_audit: OpenAudit,
        report: Report,
    ) -> None:
        self._inputs = inputs
        self._policy = options.policy
        self._columns = ColumnReader(options.exact)
        self._earlier = earlier
        self._open_audit = open_audit
        self._report = report
        self._root = inputs.dump.ledgers_root
        self._own_ledgers = LEDGERS_LEFT_OUT not in inputs.dump.left_out

    def find(self) -> AuditFindings[Tables]:
        """See `AuditEngine.find`."""
        # All of this work is submitted before the first result is awaited, the longest first.
        decode = partial(decode_part, self._columns)
        nodes = {subtree: self._inputs.rows(subtree, NODE_COLUMNS, decode) for subtree in _NODES}
        look = partial(unknown_subtrees, foreign=self._policy.foreign_subtrees)
        unknown = self._inputs.rows(Subtree.OTHER, NODE_COLUMNS, look)
        admin_parts = self._inputs.rows(Subtree.ADMIN, NODE_COLUMNS, admin_facts)
        marks = self._inputs.rows(Subtree.BOOKKEEPER, ("path",), under_replication_marks) if self._own_ledgers else ()
        dumps = partial(dumped_ids, self._columns, self._root)
        ledger_columns = ["path", "unreadable"]
        in_dump = self._inputs.columns(Subtree.LEDGERS, ledger_columns, dumps) if self._own_ledgers else ()
        listed = list(self._inputs.columns(Table.LEDGERS, ["ledger_id"], listed_ids))
        dumped, unread_directories = _dumped(in_dump if self._own_ledgers else ((ids, []) for ids in listed))
        self._report(
            f"{format_count(sum(map(len, listed)), 'ledger')} in the listing, {int((dumped >= 0).sum()):,} in the dump"
        )
        sets = LedgerSets(listed, dumped)
        decoded = {subtree: list(_adding_references(sets, parts)) for subtree, parts in nodes.items()}
        parts, admin = list(chain.from_iterable(decoded.values())), list(admin_parts)
        singles, protection, unread_segments = self._references_outside_lists(
            parts, chain.from_iterable(unknown), admin
        )
        sets.refer(singles.column("ledger_id").to_numpy())
        self._report(f"{format_count(sets.references, 'reference')}")
        gone = without_unread(sets.gone(), unread_directories, self._root)
        # BookKeeper's own nodes have the sizes of these, and of the lists' ledgers whose size no list has.
        alone = pa.concat_tables([singles, _once([part.unsized for part in parts])])
        alone = alone.filter(pc.invert(pc.is_in(alone.column("ledger_id"), value_set=pa.array(gone))))
        lists = self._lists_naming(gone, decoded)
        sizes, owner_marks, cases = self._read_wanted(sets, alone.column("ledger_id").to_numpy())
        owners = self._owner_nodes(owner_marks)
        own_usage = [*(part.usage for part in parts), single_usage(self._columns, alone, sizes)]
        dangling = _dangling_references(gone, singles, list(lists))
        missing = dangling.filter(pc.less_equal(dangling.column("ledger_id"), sets.newest()))
        subtracted = [negative_usage(self._columns, batch) for batch in dangling.to_batches()]
        shadows = [shadow for part in parts for shadow in part.shadows]
        shadows += [shadow for facts in admin for shadow in facts.shadows]
        loaded = [part.loaded for part in parts]
        usage = usage_table([*own_usage, *subtracted], loaded, {str(shadow.topic) for shadow in shadows})
        suspects = Suspects(
            self._root,
            self._schemas_without_ledgers(missing, gone),
            [path for facts in admin for path in facts.partitioned_topics],
            [path for part in parts for path in part.pending_acks],
            list(chain.from_iterable(marks)),
        )
        judge = Judge(as_of_ms(self._inputs.dump), self._policy, protection)
        copies = self._compare_copies(judge, sets, parts, _joined(facts.offload_lags_ms for facts in admin))
        judge = replace(judge, not_whole=not_whole(copies.findings))
        orphans, unattributed = self._judge(cases, judge, {node.path: node for some in owners for node in some})
        offloaded, offload = self._tiered_storage(judge, copies)
        lost = pa.Table.from_batches([missing_rows(missing.to_pylist())]).sort_by(_ORDER_OF_MISSING)
        return AuditFindings(
            Tables(orphans, unattributed, lost, usage, offloaded),
            replace(_counts(sets, usage, orphans, unattributed, missing), offload=offload),
            protection,
            unread_segments,
            dangers(shadows, _joined(facts.retentions for facts in admin)),
            suspects.without(
                [
                    *self._present(Subtree.MANAGED_LEDGERS, suspects.topics),
                    *self._present(Subtree.LEDGERS, suspects.ledgers),
                ]
            ),
        )

    @contextmanager
    def write(
        self, findings: AuditFindings[Tables], audit_id: str, instance_id: str, failed_guards: str
    ) -> Iterator[WrittenTables]:
        """See `AuditEngine.write`."""
        tables, digest = findings.tables, PlanDigest(audit_id, instance_id)
        orphans, unattributed = ORPHAN_LEDGERS.empty_table(), UNATTRIBUTED_LEDGERS.empty_table()
        with self._open_audit(schemas_of(*AUDIT_TABLES), f"audit_id={audit_id}") as output:
            for batch in tables.orphans:
                judged = withhold_deletable(batch, failed_guards) if failed_guards else batch
                numbered = number_deletable(judged, digest.rows)
                digest.add(numbered.filter(is_deletable(numbered)))
                output.write(Table.ORPHAN_LEDGERS, numbered)
                orphans = with_first_rows(orphans, numbered, LARGEST_FIRST["orphans"], REPORT_LEDGERS)
            for batch in tables.unattributed:
                output.write(Table.UNATTRIBUTED_LEDGERS, batch)
                unattributed = with_first_rows(unattributed, batch, LARGEST_FIRST["unattributed"], REPORT_ROWS)
            missing, usage, copies = tables.missing, tables.usage, tables.offloaded
            copies = numbered_copies(copies, digest.rows, failed_guards)
            others = {Table.MISSING_LEDGERS: missing, Table.LEDGER_USAGE: usage, Table.OFFLOADED_LEDGERS: copies}
            for table, rows in others.items():
                for batch in rows.to_batches():
                    output.write(table, batch)
            for batch in copies.to_batches():
                digest.add(batch.filter(is_deletable(batch)))
            files = {file.path: file.sha256 for file in output.close_tables()}
            plan = None if failed_guards else digest.plan()
            shown = report_rows_of(orphans, missing, unattributed, usage, copies)
            yield WrittenTables(output, files, plan, shown)

    def _references_outside_lists(
        self, parts: Sequence[DecodedPart], unknown: Iterable[UnreadableNode], admin: Sequence[AdminFacts]
    ) -> tuple[pa.Table, Protection, int]:
        """Return every other reference once (`SINGLES`), the protection by unread nodes, and unread records' number."""
        rows = self._inputs.table(Table.CURSOR_LEDGERS).to_pylist()
        from_ledgers, unread_cursors = decode_cursor_ledgers(rows)
        compaction = [path for part in parts for path in part.compaction_cursors]
        segments, unread_segments = decode_log_segments(self._inputs.table(Table.LOG_SEGMENTS).to_pylist())
        more = singles_batch([*from_ledgers, *segments])
        protection = Protection(
            [
                *(each for part in parts for each in part.unreadable_nodes),
                *unread_cursors,
                *unread_compaction_cursors(compaction, (row["cursor_path"] for row in rows)),
                *unknown,
                *(each for facts in admin for each in facts.unreadable_nodes),
            ],
            (tenant for facts in admin for tenant in facts.tenants),
        )
        return _once([*(part.singles for part in parts), more]), protection, unread_segments

    def _lists_naming(
        self, gone: Numbers, decoded: Mapping[Subtree, Sequence[DecodedPart]]
    ) -> Iterable[pa.RecordBatch]:
        if not len(gone):
            return ()
        table, work = IdTable(gone), partial(lists_naming, self._columns, gone)
        places = {subtree: _nodes_naming(table, parts) for subtree, parts in decoded.items()}
        return chain.from_iterable(
            [self._inputs.rows_at(subtree, NODE_COLUMNS, some, work) for subtree, some in places.items()]
        )

    def _schemas_without_ledgers(self, missing: pa.Table, gone: Numbers) -> list[str]:
        named = missing.filter(pc.equal(missing.column("kind"), LedgerKind.SCHEMA.value)).column("path").to_pylist()
        if not named:
            return []
        work = partial(schemas_without_ledgers, named, gone)
        return list(chain.from_iterable(self._inputs.rows(Subtree.SCHEMAS, NODE_COLUMNS, work)))

    def _present(self, subtree: Subtree, wanted: pa.Array) -> Iterable[pa.RecordBatch]:
        if not len(wanted):
            return ()
        return self._inputs.columns(subtree, ("path", "unreadable"), partial(present_paths, wanted))

    def _owner_nodes(self, marks: Numbers) -> Iterable[list[OwnerNode]]:
        if not len(marks):
            return ()
        wanted, work = IdTable(marks), partial(owner_nodes, self._columns)
        found = []
        for subtree in _NODES:
            marked = np.concatenate([_NONE, *self._inputs.rows(subtree, ("path",), node_marks)])
            found.append(self._inputs.rows_at(subtree, OWNER_COLUMNS, np.flatnonzero(wanted.holds(marked)), work))
        return chain.from_iterable(found)

    def _read_wanted(self, sets: LedgerSets, unsized: Numbers) -> tuple[pa.Table, Numbers, list[list[bytes]]]:
        """Return these ledgers' sizes, from BookKeeper's nodes, and the candidates with their owners' marks."""
        candidates = sets.candidates()
        starts = candidates[::_JUDGED_AT_ONCE]
        positions = sets.rows_of(np.concatenate([candidates, unsized]))
        ids = sets.dumped[positions].astype(np.int64)
        beside: Beside = {"ledger_id": ids, "is_candidate": IdTable(candidates).holds(ids)}
        part: Part = Subtree.LEDGERS if self._own_ledgers else Table.LEDGERS
        columns = ("value" if self._own_ledgers else "metadata", *WRITES)
        work = partial(read_ledgers, self._columns, starts)
        answers = list(self._inputs.rows_at(part, columns, positions, work, beside))
        sizes = pa.Table.from_batches([answer.sizes for answer in answers], SIZES)
        cases = [[each.cases[share] for each in answers if share in each.cases] for share in range(len(starts))]
        return newest_sizes(sizes), np.concatenate([_NONE, *(answer.marks for answer in answers)]), cases

    def _compare_copies(
        self, judge: Judge, sets: LedgerSets, parts: Sequence[DecodedPart], lags_ms: Mapping[str, int | None]
    ) -> ComparedCopies:
        found, manifest = ComparedCopies(), self._inputs.offloaded
        if manifest is None:
            return found
        objects = self._inputs.offloaded_objects()
        references = pa.Table.from_batches([part.copies for part in parts], COPIES)
        compare_tables(judge, OffloadFacts.of(manifest, lags_ms), found, objects, references, sets.exist)
        self._report(f"compared {format_count(objects.num_rows, 'object')} of tiered storage with the lists")
        return found

    def _tiered_storage(self, judge: Judge, copies: ComparedCopies) -> tuple[pa.Table, OffloadSummary]:
        paths = pa.array(paths_of_unreferenced(copies.findings), pa.string())
        present = [row for batch in self._present(Subtree.MANAGED_LEDGERS, paths) for row in batch.to_pylist()]
        is_trusted = self._earlier is not None and trusted(self._earlier.earlier.summary)
        earlier = self._earlier.copies if self._earlier is not None and is_trusted else NO_EARLIER_COPIES
        rows = with_statuses(judge, copies.findings, {row["path"] for row in present}, earlier)
        return rows, offload_summary(self._inputs.offloaded, rows, copies.use_rows(), self._policy)

    def _judge(
        self, shares: Sequence[Sequence[bytes]], judge: Judge, nodes: Mapping[str, OwnerNode]
    ) -> tuple[PackedRows, PackedRows]:
        orphans, unattributed = PackedRows(ORPHAN_LEDGERS), PackedRows(UNATTRIBUTED_LEDGERS)
        for packed in shares:
            cases = unpack_cases(packed)
            judged = judge_cases(judge, cases, nodes, self._earlier_orphans(cases))
            orphans.add(judged[0])
            unattributed.add(judged[1])
        self._report(f"judged {format_count(orphans.rows + unattributed.rows, 'ledger')} that nothing references")
        return orphans, unattributed

    def _earlier_orphans(self, cases: Sequence[Case]) -> dict[int, dict[str, Any]]:
        if self._earlier is None or not trusted(self._earlier.earlier.summary):
            return {}
        found = self._earlier.orphans(pa.array([row["ledger_id"] for row, _ in cases], pa.int64()))
        return {row["ledger_id"]: row for row in found.to_pylist()}


def _joined(mappings: Iterable[Mapping[str, _Value]]) -> dict[str, _Value]:
    return dict(chain.from_iterable(each.items() for each in mappings))


def _dumped(parts: Iterable[tuple[Ids, list[str]]]) -> tuple[Ids, list[str]]:
    found = list(parts)
    return np.concatenate([ids for ids, _ in found] or [_NONE]), [path for _, paths in found for path in paths]


def _adding_references(sets: LedgerSets, parts: Iterable[DecodedPart]) -> Iterator[DecodedPart]:
    """Yield the same parts, adding their references while others are still being decoded."""
    for part in parts:
        sets.refer(part.ids)
        yield part


def _once(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return each of these `SINGLES` once; only a ledger that is named several times can have a repeated one."""
    singles = pa.Table.from_batches(batches, SINGLES)
    ids = singles.column("ledger_id").to_numpy()
    ordered = np.sort(ids)
    several = IdTable(ordered[1:][ordered[1:] == ordered[:-1]]).holds(ids)
    repeated = singles.filter(pa.array(several)).group_by(SINGLES.names).aggregate([])
    return pa.concat_tables([singles.filter(pa.array(~several)), repeated]).combine_chunks()


def _nodes_naming(gone: IdTable, parts: Sequence[DecodedPart]) -> Numbers:
    """Return the positions of nodes whose lists have some of these ledgers, counted through all parts."""
    first, found = 0, [_NONE]
    for part in parts:
        found.append(part.naming(np.flatnonzero(gone.holds(part.ids))) + first)
        first += part.rows
    return np.concatenate(found)


def _dangling_references(gone: Numbers, singles: pa.Table, lists: Sequence[pa.RecordBatch]) -> pa.Table:
    if not len(gone):
        return REFERENCES.empty_table()
    named = singles.filter(pc.is_in(singles.column("ledger_id"), pa.array(gone)))
    return pa.Table.from_batches([single_references(without_replaced(named, singles)), *lists], REFERENCES)


def _counts(
    sets: LedgerSets, usage: pa.Table, orphans: PackedRows, unattributed: PackedRows, missing: pa.Table
) -> AuditCounts:
    return AuditCounts(
        listed=sets.listed,
        in_dump=sets.in_dump(),
        referenced=sets.referenced_and_listed(),
        usage_by_kind=counts_of_usage(usage, "kind"),
        usage_by_tenant=counts_of_usage(usage, "tenant"),
        orphans_by=_orphan_counts(orphans),
        unattributed=Count.sum(count_of_lengths(batch.column("length_bytes")) for batch in unattributed),
        missing=missing.num_rows,
    )


def _orphan_counts(orphans: Iterable[pa.RecordBatch]) -> dict[str, dict[str, Count]]:
    found: dict[str, dict[str, Count]] = {name: {} for name in ("standing", "kind", "cause", "tenant", "age")}
    for batch in orphans:
        labels = pa.array([age_label(age_ms) for age_ms in batch.column("age_ms").to_pylist()], pa.string())
        aged = pa.Table.from_batches([batch]).append_column("age", labels)
        for name, counts in found.items():
            for value, count in counts_of_rows(aged, name).items():
                counts[value] = Count.sum((counts.get(value, Count()), count))
    return found
