"""An audit's summary, from what an engine found."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

from pulsar_sidecar.audit.engine.protections import Protection
from pulsar_sidecar.audit.requests import Policy
from pulsar_sidecar.audit.results.guards import Earlier, Measured, demand_fitting, demand_plausible, guards
from pulsar_sidecar.audit.results.report import METRICS_NAME, REPORT_NAME, Extract, metrics_text, report_html
from pulsar_sidecar.audit.results.summaries import (
    SUMMARY_NAME,
    AuditSummary,
    Count,
    Danger,
    Engine,
    Guard,
    Input,
    Look,
    Plan,
    Unseen,
)
from pulsar_sidecar.audit.results.tables import OrphanStatus, Subtree, Table
from pulsar_sidecar.audit.sources.manifests import Manifest

_REMEMBERED_LOOKS = 100
_ID_DIGITS = 8
_NAMED = 5

AUDIT_TABLES = (Table.ORPHAN_LEDGERS, Table.MISSING_LEDGERS, Table.UNATTRIBUTED_LEDGERS, Table.LEDGER_USAGE)

Tables = TypeVar("Tables")


@dataclass(frozen=True, slots=True)
class Found:
    """What an engine found, counted.

    Attributes:
        usage_by_kind: existing ledgers that are referenced; ``usage_by_tenant`` the same by tenant.
        orphans_by: by the column ``standing``, ``kind``, ``cause``, ``tenant`` and by ``age``.
    """

    listed: int
    in_dump: int
    referenced: int
    usage_by_kind: Mapping[str, Count]
    usage_by_tenant: Mapping[str, Count]
    orphans_by: Mapping[str, Mapping[str, Count]]
    unattributed: Count
    missing: int

    @property
    def orphans(self) -> Count:
        """All of them."""
        return Count.sum(self.orphans_by["standing"].values())

    @property
    def usage(self) -> Count:
        """What is referenced."""
        return Count.sum(self.usage_by_kind.values())

    @property
    def existing(self) -> Count:
        """All ledgers of the listing, with the bytes of those whose size is known."""
        sizes = Count.sum((self.usage, self.orphans, self.unattributed))
        return Count.of(self.listed, sizes.bytes, sizes.unknown_size_ledgers)

    def measured(self) -> Measured:
        """For the guards, before any of them said no."""
        return Measured(
            existing=self.existing,
            in_dump=self.in_dump,
            referenced=self.referenced,
            references={kind: count.ledgers for kind, count in self.usage_by_kind.items()},
            missing=self.missing,
            deletable=self.orphans_by["standing"].get(OrphanStatus.DELETABLE.value, Count()),
        )


@dataclass(frozen=True, slots=True)
class About:
    """Which audit this is."""

    audit_id: str
    engine: Engine
    tool_version: str
    dump: Manifest
    inputs: Mapping[str, Input]
    policy: Policy
    earlier: Earlier | None

    @property
    def as_of_ms(self) -> int:
        """The dump's time by the store's clock."""
        return as_of_ms(self.dump)


def as_of_ms(dump: Manifest) -> int:
    """The dump's time by the store's clock, which `audit.guards.demand_fitting` has seen to be there."""
    assert dump.as_of is not None
    return dump.as_of.store_time_ms


def audit_id(dump: Manifest, inputs: Mapping[str, Input], policy: Policy) -> str:
    """The id of the audit of these inputs: the same from both engines."""
    moment = datetime.fromtimestamp(as_of_ms(dump) / 1000, UTC)
    told = [*(f"{role}:{inputs[role].sha256}" for role in sorted(inputs)), json.dumps(policy.document())]
    return f"{moment:%Y%m%dT%H%M%SZ}-{hashlib.sha256(repr(told).encode()).hexdigest()[:_ID_DIGITS]}"


def input_of(manifest: Manifest, sha256: str) -> Input:
    """A dump or a listing, as a summary names it."""
    return Input(
        sha256=sha256,
        source=f"{manifest.source.kind.value} {manifest.source.address}",
        first_zxid=manifest.zxids.first,
        last_zxid=manifest.zxids.last,
        store_time_ms=None if manifest.as_of is None else manifest.as_of.store_time_ms,
    )


def input_of_audit(summary: AuditSummary, sha256: str) -> Input:
    """An earlier audit, as a summary names it."""
    return Input(sha256, f"audit {summary.audit_id}", store_time_ms=summary.store_time_ms)


def unseen(
    protection: Protection, dump: Manifest, listing: Manifest, log_segments_unread: int, found: Found
) -> list[Unseen]:
    """Everything that this audit could not see, in words."""
    others = (Subtree.BOOKKEEPER, Subtree.DISTRIBUTED_LOG, Subtree.ADMIN, Subtree.OTHER)
    unread = sum(dump.counts[part.value].unreadable for part in others if part.value in dump.counts)
    ledgers = dump.counts[Subtree.LEDGERS.value].unreadable if Subtree.LEDGERS.value in dump.counts else 0
    tenants = sorted(tenant for tenant in found.orphans_by["tenant"] if tenant and not protection.knows_tenant(tenant))
    seen = [
        *protection.unseen(),
        Unseen(
            f"tenants of unreferenced ledgers that /admin/policies does not know ({_few(tenants)})",
            len(tenants),
            "they may be another Pulsar cluster's in the same BookKeeper, so no ledger that claims them is condemned",
        ),
        Unseen(
            "tenants' policies, which this metadata store does not have",
            0 if protection.knows_tenants else 1,
            "whether a ledger claims a tenant of another Pulsar cluster was not looked at",
        ),
        Unseen(
            "records of DistributedLog that were not understood",
            log_segments_unread,
            "a ledger without Pulsar's metadata may belong to one of them; such ledgers are never condemned",
        ),
        Unseen(
            "other nodes that could not be read",
            unread,
            "DistributedLog's records may be below them; ledgers without Pulsar's metadata are never condemned",
        ),
        Unseen(
            "nodes of ledgers that could not be read",
            ledgers,
            "they are unattributed if nothing references them; what is below a directory is not reported missing",
        ),
        Unseen(
            "ledgers of the listing whose metadata could not be read",
            sum(count.unreadable for count in listing.counts.values()),
            "the dump's own metadata is what they are judged by",
        ),
        Unseen(
            "references to ledgers that do not exist",
            found.missing,
            "one that was made and trimmed again while the dump was made looks the same; the next audit tells",
        ),
    ]
    return [each for each in seen if each.count]


def _few(names: Sequence[str]) -> str:
    return ", ".join([*names[:_NAMED], *(["..."] if len(names) > _NAMED else [])])


def summarize(
    about: About,
    found: Found,
    guards: tuple[Guard, ...],
    not_seen: Iterable[Unseen],
    plan: Plan | None,
    files: Mapping[str, str],
    dangers: tuple[Danger, ...],
) -> AuditSummary:
    """The summary. ``found.orphans_by`` must count standings as they were written, after guards withheld a plan."""
    history = () if about.earlier is None else about.earlier.summary.history
    condemned = found.orphans_by["standing"].get(OrphanStatus.DELETABLE.value, Count())
    look = Look(
        about.audit_id,
        about.as_of_ms,
        found.existing,
        found.orphans,
        condemned,
        found.missing,
        found.unattributed.ledgers,
    )
    usage = found.usage
    assert about.dump.instance_id is not None
    return AuditSummary(
        audit_id=about.audit_id,
        engine=about.engine,
        tool_version=about.tool_version,
        instance_id=about.dump.instance_id,
        cluster_name=about.dump.cluster_name,
        ledgers_root=about.dump.ledgers_root,
        store_time_ms=about.as_of_ms,
        inputs=about.inputs,
        policy=about.policy.document(),
        existing=found.existing,
        referenced=Count.of(found.referenced, usage.bytes, usage.unknown_size_ledgers),
        references=found.measured().all_references,
        orphans=found.orphans_by["standing"],
        orphans_by_kind=found.orphans_by["kind"],
        orphans_by_cause=found.orphans_by["cause"],
        orphans_by_tenant=found.orphans_by["tenant"],
        orphans_by_age=found.orphans_by["age"],
        existing_by_kind=_together(found.usage_by_kind, found.orphans_by["kind"]),
        existing_by_tenant=_together(found.usage_by_tenant, found.orphans_by["tenant"]),
        missing=found.missing,
        unattributed=found.unattributed,
        guards=guards,
        unseen=tuple(not_seen),
        plan=plan,
        history=(*history, look)[-_REMEMBERED_LOOKS:],
        files=files,
        dangers=dangers,
    )


def failed(guards: Iterable[Guard]) -> str:
    """The names of guards that did not pass."""
    return ", ".join(guard.name for guard in guards if not guard.passed)


def _together(*counts: Mapping[str, Count]) -> dict[str, Count]:
    together: dict[str, Count] = {}
    for each in counts:
        for key, count in each.items():
            together[key] = Count.sum((together.get(key, Count()), count))
    return together


@dataclass(frozen=True, slots=True)
class Opened:
    """What an audit is made of: every file was compared with its manifest.

    Attributes:
        inputs: as a summary names them.
    """

    dump: Manifest
    listing: Manifest
    inputs: Mapping[str, Input]
    earlier: Earlier | None


@dataclass(frozen=True, slots=True)
class Order:
    """How to audit, beside the inputs.

    Attributes:
        place: the directory as its user wrote it.
        exact: leave every value to the exact decoder (`audit.columnar.reader`).
    """

    policy: Policy
    tool_version: str
    place: str
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Findings(Generic[Tables]):
    """The engine's own tables, as if every guard had passed, and what was counted."""

    tables: Tables
    found: Found
    protection: Protection
    log_segments_unread: int
    dangers: tuple[Danger, ...]


class AuditFiles(Protocol):
    """The directory of an audit in the making."""

    def write_text(self, name: str, text: str) -> None:
        """Add a file that is no table."""
        ...

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        """Write the summary and let the directory appear, all at once."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """Tables that were written.

    Attributes:
        files: their digests by their names.
        plan: None if a guard failed.
        extract: the rows that the report shows.
    """

    output: AuditFiles
    files: Mapping[str, str]
    plan: Plan | None
    extract: Extract


class AuditEngine(Protocol[Tables]):
    """What each engine does in its own way."""

    kind: Engine

    def find(self) -> Findings[Tables]:
        """Compare and judge.

        Raises:
            InvalidInputError: no audit can be made of these inputs.
        """
        ...

    def write(self, findings: Findings[Tables], about: About, failed_guards: str) -> AbstractContextManager[Written]:
        """Withhold what ``failed_guards`` (their names, or nothing) do not allow, number the rest, write the tables.

        Leaving the context without `AuditFiles.finish` leaves nothing behind.
        """
        ...


def run_audit(engine: AuditEngine[Tables], opened: Opened, order: Order) -> AuditSummary:
    """Audit.

    Raises:
        InvalidInputError: no audit can be made of these inputs; nothing is left behind.
        TemporaryError: the audit could not be written.
    """
    dump, listing, earlier = opened.dump, opened.listing, opened.earlier
    demand_fitting(dump, listing, None if earlier is None else earlier.summary, order.policy)
    identity = audit_id(dump, opened.inputs, order.policy)
    about = About(identity, engine.kind, order.tool_version, dump, opened.inputs, order.policy, earlier)
    findings = engine.find()
    measured = findings.found.measured()
    demand_plausible(measured, dump)
    passed = guards(dump, listing, measured, earlier, order.policy)
    failed_guards = failed(passed)
    found = _withheld(findings.found) if failed_guards else findings.found
    with engine.write(findings, about, failed_guards) as written:
        not_seen = unseen(findings.protection, dump, listing, findings.log_segments_unread, found)
        summary = summarize(about, found, passed, not_seen, written.plan, written.files, findings.dangers)
        written.output.write_text(REPORT_NAME, report_html(summary, written.extract, place=order.place))
        written.output.write_text(METRICS_NAME, metrics_text(summary))
        written.output.finish(SUMMARY_NAME, summary.document())
    return summary


def _withheld(found: Found) -> Found:
    counts = dict(found.orphans_by["standing"])
    deletable = counts.pop(OrphanStatus.DELETABLE.value, None)
    if deletable is not None:
        counts[OrphanStatus.WITHHELD.value] = deletable
    return replace(found, orphans_by={**found.orphans_by, "standing": counts})
