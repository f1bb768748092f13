"""Summary of an audit, ``summary.json`` beside its tables: findings, inputs, and the plan of deletions.

Invariant: a summary is written last and only of a complete audit, as a manifest is of a dump; it names the plan that
may be applied by its hash, which covers every deletable ledger.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Self

import msgspec

from pulsar_sidecar.features.audit.sources.manifests import SourceKind
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import Document, Engine, Limitation

KIND = "audit"
FORMAT_VERSION = 2
_WITHOUT_UNKNOWN_SIZES = 1
"""Format before `Count.unknown_size_ledgers`."""
MOST_LEFTOVER_NODES = 1_000
_GIB = 2**30
_ENVELOPE = {"kind", "formatVersion", "complete"}


@decodable
class Input(Document, frozen=True):
    """Dump, listing or earlier audit, as it was read.

    Attributes:
        sha256: digest of its manifest or summary.
        source: kind and address, without credentials.
        first_zxid: earliest moment as of which it was read; None where the source does not report it.
        store_time_ms: time of the newest write in it, by the store's clock.
    """

    sha256: str
    source: str
    first_zxid: int | None = None
    last_zxid: int | None = None
    store_time_ms: int | None = None

    @property
    def keeps_times(self) -> bool:
        """True if the source's creation times are exact (`SourceKind.keeps_times`)."""
        return not self.source.startswith(f"{SourceKind.ETCD.value} ")


@decodable
class GuardResult(Document, frozen=True):
    """One guard over the whole audit: the value it checks, and whether it lets ledgers be deleted."""

    name: str
    passed: bool
    value: str
    limit: str
    explanation: str


@decodable
class Danger(Document, frozen=True):
    """Topic that may destroy another topic's ledgers: reason and remedy."""

    topic: str
    why: str
    remedy: str


@decodable
class LeftoverNode(Document, frozen=True):
    """Node that points to nothing: path, reason, and the command that removes it."""

    kind: str
    path: str
    why: str
    remedy: str


@decodable
class LeftoverNodes(Document, frozen=True):
    """Nodes that point to nothing: numbers by kind, and the first `MOST_LEFTOVER_NODES` by kind and path."""

    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    nodes: tuple[LeftoverNode, ...] = ()

    @classmethod
    def of(cls, nodes: "Iterable[LeftoverNode]") -> Self:
        ordered = sorted(nodes, key=lambda node: (node.kind, node.path))
        return cls(Counter(node.kind for node in ordered), tuple(ordered[:MOST_LEFTOVER_NODES]))

    @property
    def count(self) -> int:
        return sum(self.counts.values())


@decodable
class Count(Document, frozen=True):
    """Ledgers, and the bytes of those whose size is known; the number of the others is ``unknown_size_ledgers``.

    ``bytes`` are None if there are ledgers and the size of none is known.
    """

    ledgers: int = 0
    bytes: int | None = 0
    unknown_size_ledgers: int = 0

    @classmethod
    def of(cls, ledgers: int, known_bytes: int | None, unknown_size_ledgers: int) -> Self:
        """Return a count whose ``bytes`` are None where no size is known."""
        nothing_known = 0 < ledgers <= unknown_size_ledgers
        return cls(ledgers, None if nothing_known else known_bytes or 0, unknown_size_ledgers)

    @classmethod
    def sum(cls, counts: "Iterable[Count]") -> Self:
        some = list(counts)
        return cls.of(
            sum(count.ledgers for count in some),
            sum(count.known_bytes for count in some),
            sum(count.unknown_size_ledgers for count in some),
        )

    @property
    def known_bytes(self) -> int:
        """Bytes of the ledgers whose size is known, 0 if there are none."""
        return self.bytes or 0


@decodable
class HistoryEntry(Document, frozen=True):
    """Audit in the history of later ones, for trends."""

    audit_id: str
    store_time_ms: int
    existing: Count
    orphans: Count
    condemned: Count
    missing: int
    unattributed: int


@decodable
class PlanSummary(Document, frozen=True):
    """Plan of deletions: ``rows`` deletable ledgers, with the ``sha256`` that a user approves.

    ``bytes`` and ``unknown_size_ledgers`` are those of their `Count`.
    """

    rows: int
    bytes: int | None
    unknown_size_ledgers: int
    sha256: str

    @classmethod
    def of(cls, ledgers: Count, sha256: str) -> Self:
        return cls(ledgers.ledgers, ledgers.bytes, ledgers.unknown_size_ledgers, sha256)

    @property
    def ledgers(self) -> Count:
        return Count(self.rows, self.bytes, self.unknown_size_ledgers)


class OffloadUse(StrEnum):
    """Use of bytes, in tiered storage unless stated otherwise."""

    REFERENCED = "referenced"
    UNREFERENCED = "unreferenced"
    ANOTHER_CLUSTER = "another-cluster"
    """The objects name another cluster."""
    UNRECOGNISED = "unrecognised"
    """Objects that Pulsar's offloader does not name so, each counted alone; streaming offload's are among them."""
    STORED_TWICE = "stored-twice"
    """Bytes of BookKeeper's copies that have outlived the deletion lag, without their replicas."""
    NOT_LISTED = "not-listed"
    """By the lists at a place that the offload listing does not have, or that their contexts do not name."""


@decodable
class OffloadSummary(Document, frozen=True):
    """Copies in tiered storage, by an offload listing; no locations if tiered storage was left out.

    Attributes:
        findings: findings by `OffloadFinding`; ``standings`` has the unreferenced copies among them by `OrphanStatus`.
        uses: copies and bytes by use (`audit.engine.offloaded.OFFLOAD_USES`); ``uses_by_tenant`` by tenant, then use.
        price_per_gib_month: price that the user gave, 0 if none.
    """

    locations: tuple[str, ...] = ()
    objects: int = 0
    findings: Mapping[str, Count] = msgspec.field(default_factory=dict)
    standings: Mapping[str, Count] = msgspec.field(default_factory=dict)
    uses: Mapping[str, Count] = msgspec.field(default_factory=dict)
    uses_by_tenant: Mapping[str, Mapping[str, Count]] = msgspec.field(default_factory=dict)
    price_per_gib_month: float = 0.0

    @property
    def finding_count(self) -> int:
        return Count.sum(self.findings.values()).ledgers

    def cost(self, size_bytes: int) -> float:
        return size_bytes / _GIB * self.price_per_gib_month

    def costs_by_tenant(self) -> dict[str, tuple[float, ...]]:
        """Return each tenant's price for a month, referenced, unreferenced and stored twice, the dearest first."""
        shown = (OffloadUse.REFERENCED, OffloadUse.UNREFERENCED, OffloadUse.STORED_TWICE)
        costs = {
            tenant: tuple(self.cost(uses.get(use.value, Count()).known_bytes) for use in shown)
            for tenant, uses in self.uses_by_tenant.items()
        }
        return dict(sorted(costs.items(), key=lambda item: (-sum(item[1]), item[0])))


NO_TIERED_STORAGE = OffloadSummary()


@decodable
class AuditSummary(Document, frozen=True):
    """Results of one audit, apart from the rows of its tables.

    Attributes:
        audit_id: id of the audit, also the partition of each table, ``audit_id=<id>``.
        inputs: inputs by role: ``dump``, ``listing``, and ``previous`` if there was one.
        policy: every setting that the verdicts depend on, by its option's name.
        existing: all ledgers of the listing, with the bytes of BookKeeper's closed ones; ``referenced`` is part of it.
        orphans: orphans by `OrphanStatus`; ``orphans_by_kind`` and others count all orphans, too, and the empty string
            stands for a ledger without a tenant.
        existing_by_kind: all attributed ledgers of the listing by `LedgerKind`, ``existing_by_tenant`` by tenant.
        leftover_nodes: nodes that point to nothing; not findings, since they neither lose nor leak a ledger.
        guards: every guard, passed or not; one that did not pass withholds the plan.
        history: earlier audits, oldest first, and this one at the end.
        files: SHA-256 of the files, by relative path.
    """

    audit_id: str
    engine: Engine
    tool_version: str
    instance_id: str
    cluster_name: str | None
    ledgers_root: str
    store_time_ms: int
    inputs: Mapping[str, Input]
    policy: Mapping[str, str | int | float | bool]
    existing: Count
    referenced: Count
    references: int
    orphans: Mapping[str, Count]
    orphans_by_kind: Mapping[str, Count]
    orphans_by_cause: Mapping[str, Count]
    orphans_by_tenant: Mapping[str, Count]
    orphans_by_age: Mapping[str, Count]
    existing_by_kind: Mapping[str, Count]
    existing_by_tenant: Mapping[str, Count]
    missing: int
    unattributed: Count
    guards: tuple[GuardResult, ...]
    unseen: tuple[Limitation, ...]
    plan: PlanSummary | None
    history: tuple[HistoryEntry, ...] = ()
    files: Mapping[str, str] = msgspec.field(default_factory=dict)
    dangers: tuple[Danger, ...] = ()
    leftover_nodes: LeftoverNodes = LeftoverNodes()
    offload: OffloadSummary = NO_TIERED_STORAGE

    @property
    def findings(self) -> bool:
        """True if there is an orphan, a missing or an unattributed ledger, a danger, or a finding in tiered storage."""
        counted = self.missing or self.unattributed.ledgers or any(count.ledgers for count in self.orphans.values())
        return bool(counted or self.dangers or self.offload.findings)

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON has it."""
        return {
            "kind": KIND,
            "formatVersion": FORMAT_VERSION,
            "complete": True,
            **msgspec.json.decode(msgspec.json.encode(self, order="deterministic")),
        }


def parse_summary(document: Any) -> AuditSummary:
    """Read a document of `AuditSummary.document`; everything else is an `InvalidInputError`."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InvalidInputError("this is not the summary of an audit")
    version = document.get("formatVersion")
    if version == _WITHOUT_UNKNOWN_SIZES:
        document, version = _with_unknown_sizes(document), FORMAT_VERSION
    if version != FORMAT_VERSION:
        raise InvalidInputError(f"format {version!r:.40} is not known to this version; upgrade first")
    if document.get("complete") is not True:
        raise InvalidInputError("the audit is not complete; run it again")
    parts = {
        "dangers": [],
        "leftoverNodes": {"counts": {}, "nodes": []},
        "offload": msgspec.json.decode(msgspec.json.encode(NO_TIERED_STORAGE)),
        **{name: document[name] for name in document.keys() - _ENVELOPE},
    }
    try:
        summary = msgspec.convert(parts, AuditSummary)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"this is not the summary of an audit: {error}") from error
    # A field with a default must still be written: without `files`, for example, nothing would be compared.
    if summary.document() != {**document, **parts, "formatVersion": FORMAT_VERSION}:
        raise InvalidInputError("this is not the summary of an audit: a field is missing")
    return summary


def _with_unknown_sizes(part: Any) -> Any:
    """Convert part of a summary that lacks the numbers of unknown sizes."""
    if isinstance(part, list):
        return [_with_unknown_sizes(each) for each in part]
    if not isinstance(part, dict):
        return part
    converted = {name: _with_unknown_sizes(value) for name, value in part.items()}
    return {**converted, "unknownSizeLedgers": 0} if "bytes" in part else converted
