"""Manifest of a dump or a listing: its origin, its content, and the proof that it is whole.

Invariant: a manifest is written last, and only of something complete; one of an unknown format is refused.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import Document, FileDigest

FORMAT_VERSION = 1
_ENVELOPE = {"formatVersion", "complete", "tool", "machineTimesMs"}
LEDGERS_LEFT_OUT = "ledgers"


class InputKind(StrEnum):
    """Content of a directory."""

    DUMP = "metadata-dump"
    LISTING = "ledger-listing"
    OFFLOADED = "offload-listing"


class SourceKind(StrEnum):
    """Kind of a source; other metadata stores get kinds of their own."""

    ZOOKEEPER = "zk"
    ZOOKEEPER_SNAPSHOT = "zk-snapshot"
    ROCKSDB_COPY = "rocksdb-copy"
    OFFLOAD = "offload"
    ETCD = "etcd"

    @property
    def keeps_times(self) -> bool:
        """True if ``ctime_ms`` is when a node was created; otherwise it is a time before which it was."""
        return self is not SourceKind.ETCD


@decodable
class Source(Document, frozen=True):
    """Source of a dump or a listing; ``address`` holds no credential."""

    kind: SourceKind
    address: str


@decodable
class Proof(Document, frozen=True):
    """Proof that a reading is whole: markers in words, and numbers of comparisons by kind, all of them in agreement."""

    start_marker: str
    end_marker: str
    checks: Mapping[str, int] = msgspec.field(default_factory=dict)


@decodable
class OrderRange(Document, frozen=True):
    """Range in the store's order of changes (ZooKeeper ``zxid``) in which a source was read.

    Everything was read as of some moment not before ``first``; no change after ``last`` is in it. ``last`` is None if a
    snapshot does not record it.
    """

    first: int
    last: int | None


@decodable
class NewestWrite(Document, frozen=True):
    """Newest write in a reading: its order and the store's own time of it, from which ages are computed."""

    zxid: int
    store_time_ms: int


@decodable
class RowCounts(Document, frozen=True):
    """Number of rows, and number of those marked unreadable."""

    rows: int = 0
    unreadable: int = 0


@decodable
class Manifest(Document, frozen=True, kw_only=True):
    """Manifest of a dump or a listing.

    Attributes:
        instance_id: BookKeeper's id of the ledger storage.
        cluster_name: Pulsar's name of the cluster, if there is exactly one in the store.
        zxids: range of the reading, in the store's order.
        as_of: time of the reading, by the store; None for a listing without metadata.
        counts: rows by subtree (of a dump's nodes) and by table; of an offload listing, by location.
        left_out: parts that were not read by the user's choice.
        allows_deletion: True if a ledger that nothing here references may be deleted, given the other guards;
            ``reservations`` are the reasons against it.
        machine_times: times of start and end by this machine's clock, for people; never for ages.
    """

    kind: InputKind
    source: Source
    tool_version: str
    instance_id: str
    cluster_name: str | None
    ledgers_root: str = msgspec.field(name="ledgersRootPath")
    zxids: OrderRange = msgspec.field(name="zxid")
    as_of: NewestWrite | None
    allows_deletion: bool = msgspec.field(name="mayCondemn")
    reservations: tuple[str, ...]
    left_out: tuple[str, ...]
    counts: Mapping[str, RowCounts]
    proof: Proof
    files: tuple[FileDigest, ...] = ()
    machine_times: tuple[int, int] = (0, 0)

    def document(self) -> dict[str, Any]:
        """Return the manifest as JSON has it."""
        parts = msgspec.json.decode(msgspec.json.encode(self, order="deterministic"))
        version, (started, ended) = parts.pop("toolVersion"), parts.pop("machineTimes")
        return {
            "formatVersion": FORMAT_VERSION,
            "complete": True,
            "tool": {"name": "pulsar-sidecar", "version": version},
            **parts,
            "machineTimesMs": {"started": started, "ended": ended},
        }


def parse_manifest(document: Any) -> Manifest:
    """Read a document of `Manifest.document`; everything else is an `InvalidInputError`."""
    try:
        if document["formatVersion"] != FORMAT_VERSION:
            raise InvalidInputError(f"format {document['formatVersion']} is not known to this version; upgrade first")
        if document["complete"] is not True:
            raise InvalidInputError("it is not complete; repeat the command that wrote it")
        parts = {name: document[name] for name in document.keys() - _ENVELOPE}
        times = document["machineTimesMs"]
        parts.update(toolVersion=document["tool"]["version"], machineTimes=[times["started"], times["ended"]])
        manifest = msgspec.convert(parts, Manifest)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise InvalidInputError(f"this is not the manifest of a dump or a listing ({error!r})") from error
    # A field with a default must still be written: without `files`, for example, nothing would be compared.
    if manifest.document() != document:
        raise InvalidInputError("this is not the manifest of a dump or a listing: a field is missing")
    return manifest
