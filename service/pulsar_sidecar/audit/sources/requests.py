"""What a user asks for: dumps and listings in the words of the command line, read and refused here."""

from dataclasses import dataclass, field
from pathlib import Path

from pulsar_sidecar.audit.policies import Policy
from pulsar_sidecar.audit.sources.manifests import SourceKind
from pulsar_sidecar.model.errors import InvalidInputError

_DUMP_FORMS = "zk://HOST:PORT[,HOST:PORT...][/CHROOT], zk-snapshot:FILE or zk-admin:http://HOST:PORT"
_LISTING_FORMS = "metadata or bookie-http://HOST:PORT[,HOST:PORT...]"
_OTHER_STORES = ("etcd:", "oxia:", "rocksdb:")
METADATA = "metadata"
DEFAULT_NODES_PER_SECOND = 20_000.0
"""So fast a living ZooKeeper is read unless told otherwise: a million ledgers in a minute, a part of what it can."""


@dataclass(frozen=True, slots=True)
class DumpRequest:
    """``metadata dump``.

    Attributes:
        source: one of the forms that `dump_source` reads.
        output: the directory to make.
        chroot: where in a snapshot the cluster is; a living ZooKeeper's chroot is in its address.
        cursors_from: the living cluster's metadata store for the cursors' ledgers, as ``metadataStoreUrl``; None for
            ``source`` itself if it is living.
        nodes_per_second: from a living ZooKeeper; None for the default, 0 for no limit.
        metadata_store_auth: ``scheme:credential`` for ZooKeeper and its AdminServer.
    """

    source: str
    output: Path
    chroot: str = ""
    ledgers_root: str = "/ledgers"
    without_ledgers: bool = False
    cursors_from: str | None = None
    nodes_per_second: float | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)
    trusted_certificates: Path | None = None


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
    policy: Policy = field(default_factory=Policy)
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit came to, for whoever ran it."""

    exit_code: int
    verdict: str
    next_step: str


def dump_source(text: str) -> tuple[SourceKind, str]:
    """The kind of a dump's source and its address.

    Raises:
        InvalidInputError: not one that there is a driver for.
    """
    if text.startswith(_OTHER_STORES):
        raise InvalidInputError(f"there is no driver for {text.partition(':')[0]} yet; the source is {_DUMP_FORMS}")
    for kind, beginning in (
        (SourceKind.ZOOKEEPER, "zk://"),
        (SourceKind.ZOOKEEPER_SNAPSHOT, "zk-snapshot:"),
        (SourceKind.ZOOKEEPER_ADMIN, "zk-admin:"),
    ):
        address = text.removeprefix(beginning)
        if address != text and address:
            if kind is SourceKind.ZOOKEEPER_ADMIN and not address.startswith(("http://", "https://")):
                break
            return kind, address
    raise InvalidInputError(f"{text!r:.200} is no source of a dump; write {_DUMP_FORMS}")


def listing_source(text: str) -> tuple[SourceKind, tuple[str, ...]]:
    """The kind of a listing's source and its addresses; none for the metadata store.

    Raises:
        InvalidInputError: neither way of listing.
    """
    if text == METADATA:
        return SourceKind.ZOOKEEPER, ()
    servers = text.removeprefix("bookie-http://")
    if servers == text or not all(server.strip() for server in servers.split(",")):
        raise InvalidInputError(f"{text!r:.200} is no source of a listing; write {_LISTING_FORMS}")
    return SourceKind.BOOKIE_HTTP, tuple(f"http://{server.strip()}" for server in servers.split(","))


def zookeeper_rate(asked: float | None) -> float | None:
    """The most nodes in a second from a living ZooKeeper, None for no limit."""
    return DEFAULT_NODES_PER_SECOND if asked is None else asked or None
