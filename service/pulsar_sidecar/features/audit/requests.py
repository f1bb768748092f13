"""Requests of users, in the words of the command line, and results; no Arrow, so that ``--help`` is quick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pulsar_sidecar.features.audit.sources.manifests import SourceKind
from pulsar_sidecar.model.client_conf import NO_CLIENT_CONF, ClientConf
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata_stores import ETCD, unsupported_store

HOUR_MS = 3_600_000
EXCLUSIVE = "bookkeeperExclusiveToCluster"
"""Key of a summary's policy: True if the audit may assume that this BookKeeper serves only its Pulsar cluster."""

_DUMP_FORMS = (
    "zk://HOST:PORT[,HOST:PORT...][/CHROOT], etcd:http://HOST:PORT[,...], zk-snapshot:FILE or rocksdb-copy:DIRECTORY"
)
DEFAULT_NODES_PER_SECOND = 20_000.0
"""Default rate of reads from a running ZooKeeper: a million ledgers per minute, a part of its capacity."""


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """Settings on which the verdicts depend, beside the inputs.

    Attributes:
        min_age_ms: minimum age of deletable ledgers, by the store's clock.
        look_window_ms: minimum time between the first dump that found a ledger unreferenced and this one.
        max_share: largest share of the ledgers, and of their bytes, that may be deleted.
        max_shrink: largest share by which references and ledgers may have decreased since the earlier audit.
        allow_young: True if ``min_age_ms`` may be below 24 hours.
        foreign_subtrees: paths in the metadata store below which nothing is Pulsar's.
        bookkeeper_exclusive: True if the user assures that no other Pulsar cluster keeps ledgers in this BookKeeper;
            otherwise no ledger is deletable, since the audit cannot see another cluster's references.
        offload_exclusive: True if the user assures that no other Pulsar cluster of this name offloads to the listed
            buckets, and none at all to the listed directories; otherwise no copy in tiered storage is deletable.
        offload_lag_ms: time after which brokers delete BookKeeper's copy of an offloaded ledger, where its namespace
            does not set another; negative for never.
        price_per_gib_month: price of a GiB in tiered storage for a month, in any currency; 0 to estimate no costs.
    """

    min_age_ms: int = 72 * HOUR_MS
    look_window_ms: int = 12 * HOUR_MS
    max_share: float = 0.1
    max_shrink: float = 0.2
    allow_young: bool = False
    foreign_subtrees: tuple[str, ...] = ()
    bookkeeper_exclusive: bool = False
    offload_exclusive: bool = False
    offload_lag_ms: int = 4 * HOUR_MS
    price_per_gib_month: float = 0.0

    def document(self) -> dict[str, str | int | float | bool]:
        return {
            "minAgeHours": self.min_age_ms / HOUR_MS,
            "lookWindowHours": self.look_window_ms / HOUR_MS,
            "maxShare": self.max_share,
            "maxShrink": self.max_shrink,
            "allowYoung": self.allow_young,
            "foreignSubtrees": " ".join(sorted(self.foreign_subtrees)),
            EXCLUSIVE: self.bookkeeper_exclusive,
            "offloadExclusiveToCluster": self.offload_exclusive,
            "offloadDeletionLagHours": self.offload_lag_ms / HOUR_MS,
            "pricePerGibMonth": self.price_per_gib_month,
        }


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """Request of ``metadata dump``; ``source`` has a form that `dump_source` reads.

    Attributes:
        chroot: path of the cluster in a snapshot; a running ZooKeeper's chroot is in its address.
        cursors_from: running cluster's metadata store for the cursors' ledgers, as ``metadataStoreUrl``; None for
            ``source`` itself if it is a running ZooKeeper.
        nodes_per_second: rate of reads from a running ZooKeeper; None for the default, 0 for no limit.
        metadata_store_auth: ``scheme:credential`` for ZooKeeper.
    """

    source: str
    output: Path
    chroot: str = ""
    ledgers_root: str = "/ledgers"
    without_ledgers: bool = False
    cursors_from: str | None = None
    nodes_per_second: float | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ListingRequest:
    """Request of ``ledgers list``; the store holds the ledgers' nodes, or the URL is ``rocksdb-copy:DIRECTORY``.

    ``ledgers_per_second``: None for the default, 0 for no limit.
    """

    output: Path
    metadata_store_url: str | None = None
    ledgers_root: str = "/ledgers"
    with_metadata: bool = False
    ledgers_per_second: float | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class OffloadListingRequest:
    """Request of ``offload list``.

    Attributes:
        locations: buckets and directories, as ``offloadAllowedLocations`` has them.
        region: region of the buckets at Amazon itself.
        cluster_name: the brokers' ``clusterName``; None for the only cluster in the metadata store.
    """

    output: Path
    locations: tuple[str, ...]
    region: str = ""
    metadata_store_url: str | None = None
    ledgers_root: str = "/ledgers"
    cluster_name: str | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """Request of ``audit run``: directories, with None for no earlier audit and for leaving tiered storage out.

    ``exact`` leaves every value to the exact decoder.
    """

    dump: Path
    listing: Path
    output: Path
    previous: Path | None = None
    policy: AuditPolicy = field(default_factory=AuditPolicy)
    exact: bool = False
    offloaded: Path | None = None


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Outcome of an audit."""

    exit_code: int
    verdict: str
    next_step: str


class FindingsTable(StrEnum):
    """Findings that a request can list."""

    ORPHANS = "orphans"
    """Unreferenced ledgers with owner, cause and evidence."""
    MISSING = "missing"
    """References to ledgers that do not exist."""
    UNATTRIBUTED = "unattributed"
    """Unreferenced ledgers whose owner is not known."""
    USAGE = "usage"
    """Referenced ledgers and their bytes, by owner and kind."""
    OFFLOADED = "offloaded"
    """Findings about copies in tiered storage."""


class GroupColumn(StrEnum):
    """Column by which rows are filtered or counted."""

    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    KIND = "kind"
    CAUSE = "cause"
    STATUS = "status"
    FINDING = "finding"

    @property
    def column(self) -> str:
        return "standing" if self is GroupColumn.STATUS else self.value


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Request for some rows of a table; ``group_by`` counts them by the values of a column instead.

    Attributes:
        equal: values that rows must have, by column; a column that the table lacks matches no row.
        largest_first: True to sort by size, not by ledger id; usage always is.
    """

    equal: Mapping[str, str] = field(default_factory=dict)
    limit: int = 20
    offset: int = 0
    largest_first: bool = False
    group_by: GroupColumn | None = None


def dump_source(text: str) -> tuple[SourceKind, str]:
    """Return the kind of a dump's source and its address; `InvalidInputError` if there is no driver for it."""
    if (advice := unsupported_store(text)) is not None:
        raise InvalidInputError(f"{text!r:.200}: {advice}")
    for kind, beginning in (
        (SourceKind.ZOOKEEPER, "zk://"),
        (SourceKind.ZOOKEEPER, "zk:"),
        (SourceKind.ZOOKEEPER_SNAPSHOT, "zk-snapshot:"),
        (SourceKind.ROCKSDB_COPY, "rocksdb-copy:"),
        (SourceKind.ETCD, ETCD),
    ):
        address = text.removeprefix(beginning)
        if address.strip("/") and address != text:
            return kind, address
    raise InvalidInputError(f"{text!r:.200} is not a source of a dump; write {_DUMP_FORMS}")


def pushgateway_group(url: str) -> tuple[str, str, dict[str, str]]:
    """Return a Pushgateway's address, and the job and the other labels of a group; else `InvalidInputError`."""
    gateway, _, group = url.partition("/metrics/job/")
    if "@" in gateway:
        raise InvalidInputError("the URL of a Pushgateway must not contain a user or a password: errors show it")
    job, *labels = (unquote(part) for part in group.rstrip("/").split("/"))
    try:
        parts = urlsplit(gateway)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that do not close, or a port out of range
        is_address = False
    if not is_address or not all((job, *labels)) or len(labels) % 2:
        raise InvalidInputError(
            f"{url!r:.200} is not a group of a Pushgateway; write http://HOST:9091/metrics/job/NAME"
        )
    return gateway, job, dict(zip(labels[::2], labels[1::2], strict=True))


def zookeeper_rate(asked: float | None) -> float | None:
    """Return nodes per second from a running ZooKeeper, None for no limit."""
    return DEFAULT_NODES_PER_SECOND if asked is None else asked or None


@dataclass(frozen=True, slots=True)
class AuditView:
    """Output of ``audit show``: text for people, the same with the whole summary as JSON has it, and an exit code."""

    text: str
    document: Mapping[str, object]
    exit_code: int


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """Request of ``audit apply``; without ``execute`` it only shows the plan.

    ``plan_sha256`` is the approved hash, ``rate`` in records per second; the store's cluster must be the audit's.
    """

    audit: Path
    execute: bool = False
    plan_sha256: str | None = None
    rate: float | None = None
    max_age_hours: float = 72.0
    metadata_store_url: str | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)
    broker_service_url: str | None = None
    client: ClientConf = NO_CLIENT_CONF


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """Result of an application, or of its dry run."""

    audit_id: str
    plan_sha256: str
    rows: int
    bytes: int | None
    executed: bool
    sent: int = 0
    sent_earlier: int = 0
    warnings: tuple[str, ...] = ()
    unknown_size_ledgers: int = 0


@dataclass(frozen=True, slots=True)
class PruneResult:
    """Removed (or removable) directories, and the reasons to keep the others."""

    removed: tuple[Path, ...]
    kept: Mapping[Path, str]
    executed: bool
