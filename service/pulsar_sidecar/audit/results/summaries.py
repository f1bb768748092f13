"""An audit's summary, ``summary.json`` beside its tables: what was found, in which inputs, and what may be deleted.

Invariant: a summary is written last and only of an audit that is complete, as a manifest is of a dump; the plan that
may be applied is named by its hash, which covers every deletable ledger.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

import msgspec

from pulsar_sidecar.analysis.documents import Document, Engine, Limitation
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError

KIND = "audit"
FORMAT_VERSION = 2
_WITHOUT_UNKNOWN_SIZES = 1
"""The format before `Count.unknown_size_ledgers`."""
MOST_LEFTOVER_NODES = 1_000
_ENVELOPE = {"kind", "formatVersion", "complete"}


@decodable
class Input(Document, frozen=True):
    """A dump, a listing or an earlier audit, as it was read.

    Attributes:
        sha256: digest of its manifest or summary.
        source: kind and address, without credentials.
        first_zxid: as of when, at the earliest; None where the source does not report it.
        last_zxid: as of when, at the latest.
        store_time_ms: the newest write seen in it, by the store's clock.
    """

    sha256: str
    source: str
    first_zxid: int | None = None
    last_zxid: int | None = None
    store_time_ms: int | None = None


@decodable
class GuardResult(Document, frozen=True):
    """One guard over the whole audit: what was looked at, and whether it lets ledgers be deleted."""

    name: str
    passed: bool
    value: str
    limit: str
    explanation: str


@decodable
class Danger(Document, frozen=True):
    """A topic that may destroy another topic's ledgers: why, and what helps."""

    topic: str
    why: str
    remedy: str


@decodable
class LeftoverNode(Document, frozen=True):
    """A node that points to nothing: its path, why it is one, and the command that removes it."""

    kind: str
    path: str
    why: str
    remedy: str


@decodable
class LeftoverNodes(Document, frozen=True):
    """Nodes that point to nothing: how many by kind, and the first `MOST_LEFTOVER_NODES` by kind and path."""

    counts: Mapping[str, int] = msgspec.field(default_factory=dict)
    nodes: tuple[LeftoverNode, ...] = ()

    @classmethod
    def of(cls, nodes: "Iterable[LeftoverNode]") -> Self:
        ordered = sorted(nodes, key=lambda node: (node.kind, node.path))
        return cls(Counter(node.kind for node in ordered), tuple(ordered[:MOST_LEFTOVER_NODES]))

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts.values())


@decodable
class Count(Document, frozen=True):
    """Ledgers, and the bytes of those whose size is known.

    Attributes:
        bytes: None if there are ledgers and the size of none is known.
        unknown_size_ledgers: how many of them ``bytes`` leaves out.
    """

    ledgers: int = 0
    bytes: int | None = 0
    unknown_size_ledgers: int = 0

    @classmethod
    def of(cls, ledgers: int, known_bytes: int | None, unknown_size_ledgers: int) -> Self:
        """A count whose ``bytes`` are None where no size is known."""
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
        """The bytes of the ledgers whose size is known, 0 if there are none."""
        return self.bytes or 0


@decodable
class HistoryEntry(Document, frozen=True):
    """One audit as a later one remembers it, for trends."""

    audit_id: str
    store_time_ms: int
    existing: Count
    orphans: Count
    condemned: Count
    missing: int
    unattributed: int


@decodable
class PlanSummary(Document, frozen=True):
    """What may be deleted: ``rows`` deletable ledgers; ``sha256`` is what a user approves.

    ``bytes`` and ``unknown_size_ledgers`` are those of their `Count`.
    """

    rows: int
    bytes: int | None
    unknown_size_ledgers: int
    sha256: str

    @classmethod
    def of(cls, ledgers: Count, sha256: str) -> Self:
        """The plan of so many deletable ledgers."""
        return cls(ledgers.ledgers, ledgers.bytes, ledgers.unknown_size_ledgers, sha256)

    @property
    def ledgers(self) -> Count:
        """What would be deleted."""
        return Count(self.rows, self.bytes, self.unknown_size_ledgers)


@decodable
class AuditSummary(Document, frozen=True):
    """Everything about one audit that is not a row of a table.

    Attributes:
        audit_id: also the partition of each table, ``audit_id=<id>``.
        inputs: by role: ``dump``, ``listing``, and ``previous`` if there was one.
        policy: every setting that the verdicts depend on, by its option's name.
        existing: all ledgers of the listing, with the bytes of BookKeeper's closed ones; ``referenced`` of them are
            referenced by something.
        orphans: by `OrphanStatus`; ``orphans_by_kind`` by `LedgerKind`, ``orphans_by_cause`` by `OrphanCause`,
            ``orphans_by_tenant`` by tenant, ``orphans_by_age`` by the report's label of an age, each of all orphans;
            the empty text stands for a ledger without a tenant.
        existing_by_kind: all attributed ledgers of the listing by `LedgerKind`, ``existing_by_tenant`` by tenant.
        dangers: topics that may destroy others' ledgers; audits of earlier builds looked for none.
        leftover_nodes: nodes that point to nothing; no findings, since no ledger is lost or left because of one.
        guards: every guard, passed or not; one that did not pass withholds the plan.
        plan: None if a guard did not pass.
        history: earlier audits, oldest first, and this one at the end.
        files: relative path to SHA-256.
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

    @property
    def findings(self) -> bool:
        """Whether there is anything to look at: an orphan, a missing or an unattributed ledger, or a danger."""
        counted = self.missing or self.unattributed.ledgers or any(count.ledgers for count in self.orphans.values())
        return bool(counted or self.dangers)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": KIND,
            "formatVersion": FORMAT_VERSION,
            "complete": True,
            **msgspec.json.decode(msgspec.json.encode(self, order="deterministic")),
        }


def parse_summary(document: Any) -> AuditSummary:
    """Read what `AuditSummary.document` wrote; everything else is an `InvalidInputError`."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise InvalidInputError("this is not the summary of an audit")
    version = document.get("formatVersion")
    if version == _WITHOUT_UNKNOWN_SIZES:
        document, version = _with_unknown_sizes(document), FORMAT_VERSION
    if version != FORMAT_VERSION:
        raise InvalidInputError(f"format {version!r:.40} is not known to this version; upgrade first")
    if document.get("complete") is not True:
        raise InvalidInputError("the audit is not complete; make it again")
    parts = {
        "dangers": [],
        "leftoverNodes": {"counts": {}, "nodes": []},
        **{name: document[name] for name in document.keys() - _ENVELOPE},
    }
    try:
        summary = msgspec.convert(parts, AuditSummary)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"this is not the summary of an audit: {error}") from error
    # A field that has a default must be written all the same: without `files`, for example, nothing would be compared.
    if summary.document() != {**document, **parts, "formatVersion": FORMAT_VERSION}:
        raise InvalidInputError("this is not the summary of an audit: a field is missing")
    return summary


def _with_unknown_sizes(part: Any) -> Any:
    """A part of a summary as the present format has it; how many sizes were unknown was not written then."""
    if isinstance(part, list):
        return [_with_unknown_sizes(each) for each in part]
    if not isinstance(part, dict):
        return part
    converted = {name: _with_unknown_sizes(value) for name, value in part.items()}
    return {**converted, "unknownSizeLedgers": 0} if "bytes" in part else converted
