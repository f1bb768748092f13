"""One audit from its opened inputs to its summary, the same on both engines.

Invariant: the tables appear all at once or not at all, and none of them has a deletable ledger if a guard failed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Generic, Protocol, TypeVar

import msgspec

from pulsar_sidecar.features.audit.engine.protections import unseen
from pulsar_sidecar.features.audit.requests import AuditPolicy
from pulsar_sidecar.features.audit.results.guards import (
    AuditCounts,
    EarlierCounts,
    demand_fitting,
    demand_plausible,
    guards,
)
from pulsar_sidecar.features.audit.results.report import METRICS_NAME, ReportRows, metrics_text, report_html
from pulsar_sidecar.features.audit.results.summaries import (
    AuditSummary,
    Count,
    Danger,
    GuardResult,
    HistoryEntry,
    Input,
    LeftoverNodes,
    OffloadUse,
    PlanSummary,
)
from pulsar_sidecar.features.audit.results.tables import OrphanStatus, Subtree, Table
from pulsar_sidecar.features.audit.sources.manifests import Manifest
from pulsar_sidecar.ownership.protections import Protection
from pulsar_sidecar.reports.documents import SUMMARY_NAME, Engine, Limitation
from pulsar_sidecar.reports.pages import REPORT_NAME
from pulsar_sidecar.reports.ports import UnfinishedDirectory

AUDIT_TABLES = (
    Table.ORPHAN_LEDGERS,
    Table.MISSING_LEDGERS,
    Table.UNATTRIBUTED_LEDGERS,
    Table.LEDGER_USAGE,
    Table.OFFLOADED_LEDGERS,
)
_HISTORY_LENGTH = 100
_ID_DIGITS = 8
_NAMED = 5

Tables = TypeVar("Tables")


@dataclass(frozen=True, slots=True)
class OpenedInputs:
    """Opened inputs of an audit, each also as a summary names it; every file matches its manifest."""

    dump: Manifest
    listing: Manifest
    inputs: Mapping[str, Input]
    earlier: EarlierCounts | None
    offloaded: Manifest | None = None


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Options of an audit; ``place`` is as its user wrote it, ``exact`` leaves every value to the exact decoder."""

    policy: AuditPolicy
    tool_version: str
    place: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class AuditFindings(Generic[Tables]):
    """An engine's own tables, as if every guard had passed, and its counts."""

    tables: Tables
    found: AuditCounts
    protection: Protection
    log_segments_unread: int
    dangers: tuple[Danger, ...]
    leftover_nodes: LeftoverNodes


@dataclass(frozen=True, slots=True)
class WrittenTables:
    """Written tables of an audit, with the digests of their files by name; ``plan`` is None if a guard failed."""

    output: UnfinishedDirectory
    files: Mapping[str, str]
    plan: PlanSummary | None
    report_rows: ReportRows


class AuditEngine(Protocol[Tables]):
    """Part of an audit that each engine does in its own way."""

    kind: Engine

    def find(self) -> AuditFindings[Tables]:
        """Compare and judge; `InvalidInputError` if these inputs cannot be audited."""

    def write(
        self, findings: AuditFindings[Tables], audit_id: str, instance_id: str, failed_guards: str
    ) -> AbstractContextManager[WrittenTables]:
        """Withhold rows because of ``failed_guards`` (names, or nothing), number the rest, write the tables.

        Leaving the context without `UnfinishedDirectory.finish` leaves nothing behind.
        """


def run_audit(engine: AuditEngine[Tables], opened: OpenedInputs, options: AuditOptions) -> AuditSummary:
    """Run an audit; after `InvalidInputError` (the inputs allow no audit) nothing is left behind."""
    dump, listing, earlier = opened.dump, opened.listing, opened.earlier
    demand_fitting(dump, listing, None if earlier is None else earlier.summary, options.policy, opened.offloaded)
    audit_id = _audit_id(opened, options.policy)
    findings = engine.find()
    demand_plausible(findings.found, dump)
    passed = guards(dump, listing, findings.found, earlier, options.policy)
    failed_guards = ", ".join(guard.name for guard in passed if not guard.passed)
    if failed_guards:
        findings = replace(findings, found=_withheld(findings.found))
    with engine.write(findings, audit_id, dump.instance_id, failed_guards) as written:
        summary = _summary(audit_id, engine.kind, opened, options, findings, passed, written)
        written.output.write_text(REPORT_NAME, report_html(summary, written.report_rows, place=options.place))
        written.output.write_text(METRICS_NAME, metrics_text(summary))
        written.output.finish(SUMMARY_NAME, summary.document())
    return summary


def as_of_ms(dump: Manifest) -> int:
    """Return the dump's time by the store's clock, which `audit.results.guards.demand_fitting` has checked to exist."""
    assert dump.as_of is not None
    return dump.as_of.store_time_ms


def input_of(manifest: Manifest, sha256: str) -> Input:
    """Return a dump or a listing in the form in which a summary names it."""
    return Input(
        sha256=sha256,
        source=f"{manifest.source.kind.value} {manifest.source.address}",
        first_zxid=manifest.zxids.first,
        last_zxid=manifest.zxids.last,
        store_time_ms=None if manifest.as_of is None else manifest.as_of.store_time_ms,
    )


def input_of_audit(summary: AuditSummary, sha256: str) -> Input:
    return Input(sha256, f"audit {summary.audit_id}", store_time_ms=summary.store_time_ms)


def _audit_id(opened: OpenedInputs, policy: AuditPolicy) -> str:
    # The same from both engines.
    moment = datetime.fromtimestamp(as_of_ms(opened.dump) / 1000, UTC)
    inputs = [f"{role}:{opened.inputs[role].sha256}" for role in sorted(opened.inputs)]
    about = [*inputs, json.dumps(policy.document())]
    return f"{moment:%Y%m%dT%H%M%SZ}-{hashlib.sha256(repr(about).encode()).hexdigest()[:_ID_DIGITS]}"


def _withheld(found: AuditCounts) -> AuditCounts:
    return replace(
        found,
        orphans_by={**found.orphans_by, "standing": _withheld_counts(found.orphans_by["standing"])},
        offload=msgspec.structs.replace(found.offload, standings=_withheld_counts(found.offload.standings)),
    )


def _withheld_counts(standings: Mapping[str, Count]) -> dict[str, Count]:
    counts = dict(standings)
    withheld = [counts.pop(each.value) for each in (OrphanStatus.DELETABLE, OrphanStatus.WITHHELD) if each in counts]
    return counts | ({OrphanStatus.WITHHELD.value: Count.sum(withheld)} if withheld else {})


def _summary(
    audit_id: str,
    engine: Engine,
    opened: OpenedInputs,
    options: AuditOptions,
    findings: AuditFindings[Tables],
    passed: tuple[GuardResult, ...],
    written: WrittenTables,
) -> AuditSummary:
    dump, found, usage = opened.dump, findings.found, findings.found.usage
    history = () if opened.earlier is None else opened.earlier.summary.history
    entry = HistoryEntry(
        audit_id,
        as_of_ms(dump),
        found.existing,
        found.orphans,
        found.deletable,
        found.missing,
        found.unattributed.ledgers,
    )
    return AuditSummary(
        audit_id=audit_id,
        engine=engine,
        tool_version=options.tool_version,
        instance_id=dump.instance_id,
        cluster_name=dump.cluster_name,
        ledgers_root=dump.ledgers_root,
        store_time_ms=as_of_ms(dump),
        inputs=opened.inputs,
        policy=options.policy.document(),
        existing=found.existing,
        referenced=Count.of(found.referenced, usage.bytes, usage.unknown_size_ledgers),
        references=found.references,
        orphans=found.orphans_by["standing"],
        orphans_by_kind=found.orphans_by["kind"],
        orphans_by_cause=found.orphans_by["cause"],
        orphans_by_tenant=found.orphans_by["tenant"],
        orphans_by_age=found.orphans_by["age"],
        existing_by_kind=_together(found.usage_by_kind, found.orphans_by["kind"]),
        existing_by_tenant=_together(found.usage_by_tenant, found.orphans_by["tenant"]),
        missing=found.missing,
        unattributed=found.unattributed,
        guards=passed,
        unseen=_unseen(opened, findings),
        plan=written.plan,
        history=(*history, entry)[-_HISTORY_LENGTH:],
        files=written.files,
        dangers=findings.dangers,
        leftover_nodes=findings.leftover_nodes,
        offload=found.offload,
    )


def _together(one: Mapping[str, Count], other: Mapping[str, Count]) -> dict[str, Count]:
    return {key: Count.sum(counts[key] for counts in (one, other) if key in counts) for key in {**one, **other}}


def _unseen(opened: OpenedInputs, findings: AuditFindings[Tables]) -> tuple[Limitation, ...]:
    dump, listing, found, protection = opened.dump, opened.listing, findings.found, findings.protection
    others = (Subtree.BOOKKEEPER, Subtree.DISTRIBUTED_LOG, Subtree.ADMIN, Subtree.OTHER)
    unread = sum(dump.counts[part.value].unreadable for part in others if part.value in dump.counts)
    ledgers = dump.counts[Subtree.LEDGERS.value].unreadable if Subtree.LEDGERS.value in dump.counts else 0
    tenants = sorted(tenant for tenant in found.orphans_by["tenant"] if tenant and not protection.knows_tenant(tenant))
    seen = [
        (
            f"tenants of unreferenced ledgers that /admin/policies does not know ({_few(tenants)})",
            len(tenants),
            "they may be another Pulsar cluster's in the same BookKeeper, so no ledger that claims them is deletable",
        ),
        (
            "tenants' policies, which this metadata store does not have",
            0 if protection.knows_tenants else 1,
            "the audit cannot see whether a ledger claims a tenant of another Pulsar cluster",
        ),
        (
            "records of DistributedLog that were not understood",
            findings.log_segments_unread,
            "a ledger without Pulsar's metadata may belong to one of them; such ledgers are never deletable",
        ),
        (
            "other nodes that could not be read",
            unread,
            "DistributedLog's records may be below them; ledgers without Pulsar's metadata are never deletable",
        ),
        (
            "nodes of ledgers that could not be read",
            ledgers,
            "they are unattributed if nothing references them; what is below a directory is not reported missing",
        ),
        (
            "ledgers of the listing whose metadata could not be read",
            sum(count.unreadable for count in listing.counts.values()),
            "they are judged by the dump's own metadata",
        ),
        (
            "references to ledgers that do not exist",
            found.missing,
            "a ledger created and trimmed while the dump was taken looks the same; compare with the next audit",
        ),
        *((f"{use.value} in tiered storage", _copies(found, use), effect) for use, effect in _UNSEEN_COPIES),
    ]
    return (*unseen(protection), *(Limitation(*each) for each in seen if each[1]))


_UNSEEN_COPIES = (
    (OffloadUse.NOT_LISTED, "the audit does not know whether these copies are complete; list their places too"),
    (OffloadUse.ANOTHER_CLUSTER, "their objects name another cluster, so they are never deletable here"),
    (OffloadUse.UNRECOGNISED, "objects with names that Pulsar's offloader does not write are never deletable"),
)


def _copies(found: AuditCounts, use: OffloadUse) -> int:
    return found.offload.uses.get(use.value, Count()).ledgers


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])
