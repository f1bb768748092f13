"""What a user asks for, in the words of the command line, and what comes of it; no Arrow, so ``--help`` is quick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pulsar_sidecar.audit.sources.manifests import SourceKind
from pulsar_sidecar.model.client_conf import NO_CLIENT_CONF, ClientConf
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.metadata_stores import unsupported_store

HOUR_MS = 3_600_000
EXCLUSIVE = "bookkeeperExclusiveToCluster"
"""In a summary's policy: whether the audit may assume that this BookKeeper serves only its Pulsar cluster."""

_DUMP_FORMS = "zk://HOST:PORT[,HOST:PORT...][/CHROOT] or zk-snapshot:FILE"
_LISTING_FORMS = "metadata or bookie-http://HOST:PORT[,HOST:PORT...]"
METADATA = "metadata"
DEFAULT_NODES_PER_SECOND = 20_000.0
"""Default rate of reads from a running ZooKeeper: a million ledgers a minute, a part of what it can serve."""


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """What the verdicts depend on beside the inputs.

    Attributes:
        min_age_ms: younger ledgers are never deletable, by the store's clock.
        look_window_ms: minimum time between the first dump that found a ledger unreferenced and this one.
        max_share: of the ledgers, and of their bytes, that may be deleted at most.
        max_shrink: by which share references and ledgers may have become fewer since the earlier audit.
        allow_young: whether ``min_age_ms`` may be below 24 hours.
        foreign_subtrees: paths in the metadata store below which nothing is Pulsar's.
        bookkeeper_exclusive: the user assures that no other Pulsar cluster keeps ledgers in this BookKeeper; without it
            no ledger is deletable, since another cluster's references cannot be seen.
    """

    min_age_ms: int = 72 * HOUR_MS
    look_window_ms: int = 12 * HOUR_MS
    max_share: float = 0.1
    max_shrink: float = 0.2
    allow_young: bool = False
    foreign_subtrees: tuple[str, ...] = ()
    bookkeeper_exclusive: bool = False

    def document(self) -> dict[str, str | int | float | bool]:
        """As the summary shows it."""
        return {
            "minAgeHours": self.min_age_ms / HOUR_MS,
            "lookWindowHours": self.look_window_ms / HOUR_MS,
            "maxShare": self.max_share,
            "maxShrink": self.max_shrink,
            "allowYoung": self.allow_young,
            "foreignSubtrees": " ".join(sorted(self.foreign_subtrees)),
            EXCLUSIVE: self.bookkeeper_exclusive,
        }


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """``metadata dump``.

    Attributes:
        source: one of the forms that `dump_source` reads.
        output: the directory to make.
        chroot: where in a snapshot the cluster is; a running ZooKeeper's chroot is in its address.
        cursors_from: the running cluster's metadata store for the cursors' ledgers, as ``metadataStoreUrl``; None for
            ``source`` itself if it is a running ZooKeeper.
        nodes_per_second: from a running ZooKeeper; None for the default, 0 for no limit.
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
    """``ledgers list``.

    Attributes:
        source: one of the forms that `listing_source` reads.
        output: the directory to make.
        metadata_store_url: where the ledgers' nodes are, for the source ``metadata``.
        ledgers_per_second: None for the default (none over HTTP, where one answer has them all), 0 for no limit.
    """

    source: str
    output: Path
    metadata_store_url: str | None = None
    ledgers_root: str = "/ledgers"
    with_metadata: bool = False
    ledgers_per_second: float | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """``audit run``.

    Attributes:
        previous: the audit before.
        exact: leave every value to the exact decoder.
    """

    dump: Path
    listing: Path
    output: Path
    previous: Path | None = None
    policy: AuditPolicy = field(default_factory=AuditPolicy)
    exact: bool = False


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The outcome of an audit."""

    exit_code: int
    verdict: str
    next_step: str


def dump_source(text: str) -> tuple[SourceKind, str]:
    """The kind of a dump's source and its address; `InvalidInputError` if there is no driver for it."""
    if (advice := unsupported_store(text)) is not None:
        raise InvalidInputError(f"{text!r:.200}: {advice}")
    for kind, beginning in (
        (SourceKind.ZOOKEEPER, "zk://"),
        (SourceKind.ZOOKEEPER, "zk:"),
        (SourceKind.ZOOKEEPER_SNAPSHOT, "zk-snapshot:"),
    ):
        address = text.removeprefix(beginning)
        if address.strip("/") and address != text:
            return kind, address
    raise InvalidInputError(f"{text!r:.200} is not a source of a dump; write {_DUMP_FORMS}")


def listing_source(text: str) -> tuple[SourceKind, tuple[str, ...]]:
    """The kind of a listing's source and its addresses; none for the metadata store.

    Raises:
        InvalidInputError: neither way of listing.
    """
    if text == METADATA:
        return SourceKind.ZOOKEEPER, ()
    servers = text.removeprefix("bookie-http://")
    _demand_no_password(servers)
    if servers == text or not all(server.strip() for server in servers.split(",")):
        raise InvalidInputError(f"{text!r:.200} is not a source of a listing; write {_LISTING_FORMS}")
    return SourceKind.BOOKIE_HTTP, tuple(f"http://{server.strip()}" for server in servers.split(","))


def pushgateway_group(url: str) -> tuple[str, str, dict[str, str]]:
    """The address of a Pushgateway, and the job and the other labels of one of its groups.

    Raises:
        InvalidInputError: the URL does not name a group.
    """
    gateway, _, group = url.partition("/metrics/job/")
    _demand_no_password(gateway)
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


def _demand_no_password(address: str) -> None:
    """Manifests and errors show addresses; this one does not."""
    if "@" in address:
        raise InvalidInputError("an address takes no user and no password: manifests and errors show it")


def zookeeper_rate(asked: float | None) -> float | None:
    """The most nodes in a second from a running ZooKeeper, None for no limit."""
    return DEFAULT_NODES_PER_SECOND if asked is None else asked or None


@dataclass(frozen=True, slots=True)
class AuditView:
    """What ``audit show`` prints.

    Attributes:
        text: for people.
        document: the same, and all of the summary, as JSON has it.
        exit_code: 0 nothing was found, 2 something was, 1 a guard failed.
    """

    text: str
    document: dict[str, Any]
    exit_code: int


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """``audit apply``.

    Attributes:
        execute: send; otherwise only look.
        plan_sha256: the plan that was approved.
        rate: most records a second.
        metadata_store_url: as in ``broker.conf``; its cluster must be the audit's.
        broker_service_url: where the deletion service's topic is.
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
    """What an application did, or would do."""

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
    """What goes, or went, and why the rest stays."""

    removed: tuple[Path, ...]
    kept: Mapping[Path, str]
    executed: bool
