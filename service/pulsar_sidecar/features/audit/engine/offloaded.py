"""Copies in tiered storage against the managed ledgers' lists that name them, both ways.

A copy is one offload attempt of a ledger: its objects on one side, the offload contexts with its UUID on the other.
Invariants: an attempt that any list names, at whatever place, is never deletable; nor is a copy whose objects do not
name this cluster and a topic of it as their owner, unless they are files, which name no cluster. Engines only bring
objects and references of the same ledgers together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import Mask, Numbers
from pulsar_sidecar.features.audit.engine.judging import Judge, is_deletable, number_deletable, withhold_deletable
from pulsar_sidecar.features.audit.engine.usage import counts_of_rows
from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy
from pulsar_sidecar.features.audit.results.summaries import NO_TIERED_STORAGE, Count, OffloadSummary, OffloadUse
from pulsar_sidecar.features.audit.results.tables import (
    OFFLOADED_LEDGERS,
    OffloadFinding,
    OrphanCause,
    OrphanStatus,
)
from pulsar_sidecar.features.audit.sources.manifests import Manifest
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import ManagedLedgerName
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.offload_locations import ObjectRole, OffloadDriver, offload_target, parse_location
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, managed_ledger_path
from pulsar_sidecar.ownership.places import Owner, owner_at, owner_of_managed_ledger
from pulsar_sidecar.ownership.references import LedgerReference
from pulsar_sidecar.reports.schemas import schema_of

Row = Mapping[str, Any]

COPIES = schema_of("""
    ledger_id bigint, attempt string, place string, path string, complete boolean, bookkeeper_deleted boolean,
    offloaded_ms bigint, size_bytes bigint
""")
"""Offload contexts in managed ledgers' lists; ``place`` is empty where the context does not locate a copy."""

OFFLOAD_USES = schema_of("tenant string, use string, ledgers bigint, bytes bigint")
"""Copies and bytes by tenant and `OffloadUse`."""

EARLIER_COPY = ("ledger_id", "attempt", "place", "length_bytes", "modified_ms", "first_seen_ms")
"""Columns of an earlier audit's unreferenced copies that judging reads."""
NO_EARLIER_COPIES = pa.schema([OFFLOADED_LEDGERS.field(name) for name in EARLIER_COPY]).empty_table()
_COPIES_AT_ONCE = 200_000


def copies_in_list(path: str, ledgers: Mapping[LedgerId, LedgerReference]) -> Iterator[dict[str, Any]]:
    """Yield the offload contexts of a managed ledger's list as `COPIES`."""
    for ledger_id, entry in ledgers.items():
        context = entry.offload
        if context is not None:
            is_located = not context.segments and (context.uid_msb, context.uid_lsb) != (0, 0)
            metadata = tuple(sorted(context.driver_metadata.items()))
            yield {
                "ledger_id": ledger_id,
                "attempt": str(context.attempt),
                "place": _place(context.driver_name, metadata) if is_located else "",
                "path": path,
                "complete": context.complete,
                "bookkeeper_deleted": context.bookkeeper_deleted,
                "offloaded_ms": context.offloaded_ms,
                "size_bytes": entry.size_bytes,
            }


@lru_cache(maxsize=1_024)
def _place(driver_name: str, metadata: tuple[tuple[str, str], ...]) -> str:
    try:
        return offload_target(driver_name, dict(metadata)).location.place
    except SidecarError:
        return ""


@dataclass(frozen=True, slots=True)
class OffloadFacts:
    """Facts about all copies.

    Attributes:
        cluster_name: ``clusterName`` of the brokers whose places the offload listing has.
        places: places that the listing has.
        lags_ms: `AdminFacts.offload_lags_ms`.
    """

    cluster_name: str | None
    places: frozenset[str]
    lags_ms: Mapping[str, int | None]

    @classmethod
    def of(cls, offload_listing: Manifest, lags_ms: Mapping[str, int | None]) -> "OffloadFacts":
        places = (parse_location(text).place for text in offload_listing.counts)
        return cls(offload_listing.cluster_name, frozenset(places), lags_ms)


@dataclass(slots=True)
class ComparedCopies:
    """Findings, unreferenced copies still without a status, and uses of bytes."""

    findings: list[dict[str, Any]] = field(default_factory=list)
    uses: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)

    def add_use(self, tenant: str | None, use: OffloadUse, size_bytes: int) -> None:
        key = (tenant or "", use.value)
        ledgers, total = self.uses.get(key, (0, 0))
        self.uses[key] = (ledgers + 1, total + size_bytes)

    def use_rows(self) -> pa.RecordBatch:
        """Return the uses as `OFFLOAD_USES`."""
        rows = [
            {"tenant": tenant, "use": use, "ledgers": ledgers, "bytes": size}
            for (tenant, use), (ledgers, size) in sorted(self.uses.items())
        ]
        return pa.RecordBatch.from_pylist(rows, schema=OFFLOAD_USES)


def compare_tables(
    judge: Judge,
    facts: OffloadFacts,
    found: ComparedCopies,
    objects: pa.Table,
    references: pa.Table,
    exist: Callable[[Numbers], Mask],
) -> None:
    """Compare objects with `COPIES` of the same ledgers, some ledgers at a time, and add the findings.

    ``exist`` returns True for each ledger that BookKeeper has.
    """
    in_bookkeeper = pa.array(exist(references.column("ledger_id").to_numpy()))
    references = references.append_column("in_bookkeeper", in_bookkeeper)
    shares = (objects.num_rows + references.num_rows) // _COPIES_AT_ONCE + 1
    for number in range(shares):
        some = (_share(table, number, shares).to_pylist() for table in (objects, references))
        compare_copies(judge, facts, found, *some)


def _share(table: pa.Table, number: int, shares: int) -> pa.Table:
    """Return the rows of a share of the ledgers; rows without a ledger are in the first."""
    ids = table.column("ledger_id").fill_null(0).to_numpy()
    return table.filter(pa.array(ids % shares == number))


def compare_copies(
    judge: Judge, facts: OffloadFacts, found: ComparedCopies, objects: Iterable[Row], references: Iterable[Row]
) -> None:
    """Compare the objects of some ledgers with all references to these ledgers, and add the findings.

    ``references`` are `COPIES` with ``in_bookkeeper``: False if BookKeeper has no ledger with this id.
    """
    copies: dict[tuple[int, str], tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    attempts: dict[int, set[str]] = defaultdict(set)
    for row in objects:
        if row["attempt"] is None:
            found.add_use(None, OffloadUse.UNRECOGNISED, row["size_bytes"])
        else:
            copies[row["ledger_id"], row["attempt"]][0].append(row)
    for row in references:
        copies[row["ledger_id"], row["attempt"]][1].append(row)
        attempts[row["ledger_id"]].add(row["attempt"])
    for (ledger_id, _), (parts, names) in sorted(copies.items()):
        # Engines bring rows in orders of their own.
        parts.sort(key=lambda part: (part["place"], part["object"], part["size_bytes"], part["modified_ms"]))
        names.sort(key=lambda name: (name["path"], name["place"]))
        for reference in names[:1]:
            _compare_named(judge, facts, found, reference, names, parts)
        places = {name["place"] for name in names}
        for place in sorted({part["place"] for part in parts} - places):
            there = [part for part in parts if part["place"] == place]
            _compare_unnamed(judge, facts, found, there, sorted(places), is_tried_again=bool(attempts[ledger_id]))


def _compare_named(
    judge: Judge,
    facts: OffloadFacts,
    found: ComparedCopies,
    reference: Row,
    names: Sequence[Row],
    parts: Sequence[Row],
) -> None:
    owner = owner_at(reference["path"])
    if reference["place"] not in facts.places:
        found.add_use(owner.tenant, OffloadUse.NOT_LISTED, reference["size_bytes"])
        return
    there = [part for part in parts if part["place"] == reference["place"]]
    if there:
        found.add_use(owner.tenant, OffloadUse.REFERENCED, _bytes(there))
    if any(name["complete"] for name in names):
        seen = _of_complete(judge, facts.lags_ms, reference, names, there)
    else:
        seen = _of_unfinished(judge, reference, there)
    if seen is None:
        return
    finding, reason = seen
    name = reference["path"].removeprefix(f"{MANAGED_LEDGERS}/")
    row = {**_row(judge, reference, owner, name, there), "finding": finding.value, "reason": reason}
    if finding is OffloadFinding.BOOKKEEPER_LATE:
        row["length_bytes"] = reference["size_bytes"]
        found.add_use(owner.tenant, OffloadUse.STORED_TWICE, reference["size_bytes"])
    found.findings.append(row)


def _of_unfinished(judge: Judge, reference: Row, there: Sequence[Row]) -> tuple[OffloadFinding, str] | None:
    if not reference["in_bookkeeper"]:
        return OffloadFinding.LOST, "BookKeeper has lost the ledger, and its offload never completed"
    if there and judge.as_of_ms - _modified_ms(there) >= judge.policy.min_age_ms:
        return OffloadFinding.UNFINISHED, "the list names the attempt, which never completed"
    return None


def _of_complete(
    judge: Judge, lags_ms: Mapping[str, int | None], reference: Row, names: Sequence[Row], there: Sequence[Row]
) -> tuple[OffloadFinding, str] | None:
    is_deleted = any(name["complete"] and name["bookkeeper_deleted"] for name in names)
    problem, in_bookkeeper = _problem(there, reference["size_bytes"]), reference["in_bookkeeper"]
    if problem is not None and in_bookkeeper:
        return OffloadFinding.DAMAGED, f"{problem}; BookKeeper still has the ledger"
    if problem is not None:
        where = "by the list tiered storage has the only copy" if is_deleted else "BookKeeper has lost its copy"
        return OffloadFinding.LOST, f"{problem}; {where}"
    if is_deleted:
        return None
    if not in_bookkeeper:
        return OffloadFinding.BOOKKEEPER_LOST, "tiered storage has it; the list still names BookKeeper's copy"
    namespace, offloaded_ms = owner_at(reference["path"]).namespace or "", reference["offloaded_ms"]
    own_ms = lags_ms.get(namespace)
    lag_ms = judge.policy.offload_lag_ms if own_ms is None else own_ms
    if lag_ms < 0 or offloaded_ms <= 0 or judge.as_of_ms - offloaded_ms <= lag_ms:
        return None
    whose = "that its namespace sets" if own_ms is not None else "of --offload-deletion-lag-hours"
    unknown = "" if namespace in lags_ms else "; the policies of its namespace are not in the dump, or cannot be read"
    return (
        OffloadFinding.BOOKKEEPER_LATE,
        f"BookKeeper's copy has outlived the deletion lag {whose}, {lag_ms / HOUR_MS:.4g} h{unknown}",
    )


def _compare_unnamed(
    judge: Judge,
    facts: OffloadFacts,
    found: ComparedCopies,
    there: Sequence[Row],
    elsewhere: Sequence[str],
    *,
    is_tried_again: bool,
) -> None:
    name, cluster = there[0]["managed_ledger"], there[0]["cluster"]
    is_file = there[0]["driver"] == OffloadDriver.FILESYSTEM.value
    owner = owner_of_managed_ledger(name or "")
    if cluster is not None and cluster != facts.cluster_name and not elsewhere:
        found.add_use(None, OffloadUse.ANOTHER_CLUSTER, _bytes(there))
        return
    found.add_use(owner.tenant, OffloadUse.UNREFERENCED, _bytes(there))
    row = _row(judge, there[0], owner, name, there)
    if any((part["managed_ledger"], part["cluster"]) != (name, cluster) for part in there):
        reason = "its objects name different owners"
    elif owner.topic is None:
        reason = f"its objects name no topic, but {name!r}" if name else "its objects do not name their managed ledger"
    elif not is_file and cluster is None:
        reason = "its objects do not name their cluster"
    else:
        has_failed = is_tried_again or _parts(there) != {role.value for role in ObjectRole}
        cause = OrphanCause.FAILED_OFFLOAD if has_failed else OrphanCause.INTERRUPTED_TRIM
        reason = f"a list names this attempt at {elsewhere[0] or 'an unknown place'}" if elsewhere else ""
        found.findings.append(
            {**row, "finding": OffloadFinding.UNREFERENCED.value, "cause": cause.value, "reason": reason}
        )
        return
    found.findings.append({**row, "finding": OffloadFinding.UNATTRIBUTED.value, "reason": reason})


def _row(judge: Judge, about: Row, owner: Owner, name: str | None, there: Sequence[Row]) -> dict[str, Any]:
    modified_ms = _modified_ms(there) if there else None
    return {
        "ledger_id": about["ledger_id"],
        "attempt": about["attempt"],
        "tenant": owner.tenant,
        "namespace": owner.namespace,
        "topic": owner.topic,
        "managed_ledger": name,
        "place": about["place"],
        "driver": there[0]["driver"] if there else None,
        "region": there[0]["region"] if there else None,
        "objects": ", ".join(sorted(_parts(there))) or "none",
        "length_bytes": _bytes(there),
        "age_ms": None if modified_ms is None else max(0, judge.as_of_ms - modified_ms),
        "modified_ms": modified_ms,
    }


def _parts(there: Sequence[Row]) -> set[str]:
    return {part["role"] for part in there}


def _bytes(there: Sequence[Row]) -> int:
    return sum(part["size_bytes"] for part in there)


def _modified_ms(there: Sequence[Row]) -> int:
    return int(max(part["modified_ms"] for part in there))


def _problem(there: Sequence[Row], listed_bytes: int) -> str | None:
    """Describe why the objects are not a whole copy, as far as a listing shows it."""
    parts = {part["role"]: part for part in there}
    missing = [role.value for role in ObjectRole if role.value not in parts]
    if missing:
        return f"{' and '.join(missing)} missing"
    data, index = parts[ObjectRole.DATA.value], parts[ObjectRole.INDEX.value]
    damage = data["damage"] or index["damage"]
    if damage is not None:
        return str(damage)
    size, indexed = data["size_bytes"], index["indexed_bytes"]
    if indexed is not None and size != indexed:
        return f"the data have {size:,} bytes, by the index {indexed:,}"
    # The filesystem driver compresses.
    if data["driver"] != OffloadDriver.FILESYSTEM.value and size < listed_bytes:
        return f"the data have {size:,} bytes, the ledger has {listed_bytes:,}"
    return None


def paths_of_unreferenced(findings: Iterable[Row]) -> list[str]:
    """Return the paths of the managed ledgers that unreferenced copies name, each once."""
    names = {row["managed_ledger"] for row in findings if row["finding"] == OffloadFinding.UNREFERENCED}
    return sorted(managed_ledger_path(ManagedLedgerName(name)) for name in names)


def not_whole(findings: Iterable[Row]) -> frozenset[int]:
    """Return the ledgers that lists name in tiered storage, which does not have them whole."""
    broken = (OffloadFinding.LOST, OffloadFinding.DAMAGED)
    return frozenset(row["ledger_id"] for row in findings if row["finding"] in broken)


def with_statuses(judge: Judge, findings: Iterable[Row], topics: Set[str], earlier: pa.Table) -> pa.Table:
    """Return `OFFLOADED_LEDGERS`, ordered, as if every guard had passed and without numbers.

    ``topics`` are those of `paths_of_unreferenced` that the dump has; ``earlier`` has the unreferenced copies of the
    audit before with `EARLIER_COPY`.
    """
    before = {_key(row): row for row in earlier.to_pylist()}
    rows = [
        _with_status(judge, row, topics, before.get(_key(row)))
        if row["finding"] == OffloadFinding.UNREFERENCED
        else row
        for row in findings
    ]
    order = [("ledger_id", "ascending"), ("attempt", "ascending"), ("place", "ascending")]
    return pa.Table.from_pylist(rows, schema=OFFLOADED_LEDGERS).sort_by(order)


def _key(row: Row) -> tuple[int, str, str]:
    return row["ledger_id"], row["attempt"], row["place"]


def _with_status(judge: Judge, row: Row, topics: Set[str], before: Row | None) -> dict[str, Any]:
    path = managed_ledger_path(ManagedLedgerName(row["managed_ledger"]))
    cause = row["cause"] if path in topics else OrphanCause.HALF_DELETED_TOPIC.value
    protected = row["reason"] or judge.protection.reason(LedgerKind.DATA, path)
    if protected:
        return {**row, "cause": cause, "standing": OrphanStatus.UNPROVEN.value, "reason": protected}
    changed = before is not None and any(row[name] != before[name] for name in ("length_bytes", "modified_ms"))
    status, reason, first_seen_ms = judge.status_by_age(
        row["age_ms"], None if before is None else before["first_seen_ms"], changed=changed
    )
    if status is OrphanStatus.DELETABLE and not judge.policy.offload_exclusive:
        status = OrphanStatus.WITHHELD
        reason = (
            "another Pulsar cluster of the same name may offload to this place; if none does, audit again with "
            "--offload-exclusive-to-cluster"
        )
    return {**row, "cause": cause, "standing": status.value, "reason": reason, "first_seen_ms": first_seen_ms}


def numbered_copies(findings: pa.Table, first: int, failed_guards: str) -> pa.Table:
    """Return the findings with the deletable ones numbered from ``first``, or withheld because of guards."""
    if failed_guards:
        findings = withhold_deletable(findings, failed_guards)
    batches = findings.combine_chunks().to_batches()
    return pa.Table.from_batches([number_deletable(batch, first) for batch in batches], OFFLOADED_LEDGERS)


def deletable_copies(findings: pa.Table) -> pa.Table:
    return findings.filter(is_deletable(findings))


def offload_summary(
    offload_listing: Manifest | None, findings: pa.Table, uses: pa.RecordBatch | pa.Table, policy: AuditPolicy
) -> OffloadSummary:
    """Return the summary of a comparison; `NO_TIERED_STORAGE` without a listing."""
    if offload_listing is None:
        return NO_TIERED_STORAGE
    by_tenant: dict[str, dict[str, Count]] = defaultdict(dict)
    totals: dict[str, Count] = {}
    for row in uses.to_pylist():
        for counts in (by_tenant[row["tenant"]], totals):
            counts[row["use"]] = Count.sum((counts.get(row["use"], Count()), Count(row["ledgers"], row["bytes"])))
    unreferenced = findings.filter(pc.equal(findings.column("finding"), OffloadFinding.UNREFERENCED.value))
    return OffloadSummary(
        locations=tuple(offload_listing.counts),
        objects=sum(count.rows for count in offload_listing.counts.values()),
        findings=counts_of_rows(findings, "finding"),
        standings=counts_of_rows(unreferenced, "standing"),
        uses=totals,
        uses_by_tenant=by_tenant,
        price_per_gib_month=policy.price_per_gib_month,
    )
