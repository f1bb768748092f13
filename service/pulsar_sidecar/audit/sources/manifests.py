"""What a dump or a listing says about itself: where it is from, what it holds, and how we know that it is whole.

Invariant: a manifest is written last, and only of something that is complete; whoever reads one refuses what it does
not understand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pulsar_sidecar.model.errors import InvalidInputError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
OWNERS_DIRECTORY, OWNERS_FILE = 0o700, 0o600
"""Who may look at dumps, listings and audits: they hold what the metadata store's ACLs may protect."""


class Kind(StrEnum):
    """What a directory holds."""

    DUMP = "metadata-dump"
    LISTING = "ledger-listing"


class SourceKind(StrEnum):
    """Where something was read; other metadata stores get kinds of their own."""

    ZOOKEEPER = "zk"
    ZOOKEEPER_SNAPSHOT = "zk-snapshot"
    ZOOKEEPER_ADMIN = "zk-admin"
    BOOKIE_HTTP = "bookie-http"


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was read; ``address`` holds no credential."""

    kind: SourceKind
    address: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Why a reading is whole.

    Attributes:
        start_marker: what stood at the beginning, in words.
        end_marker: what stood at the end.
        checks: how many comparisons of which kind were made, all of them in agreement.
    """

    start_marker: str
    end_marker: str
    checks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrderRange:
    """The store's order of changes (ZooKeeper ``zxid``) between which a source was read.

    Everything was read as of some moment not before ``first``; no change after ``last`` is in it. Both are None for a
    source that does not tell.
    """

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class Moment:
    """The newest write that was seen: its order and the store's own time of it, by which ages are told."""

    zxid: int
    store_time_ms: int


@dataclass(frozen=True, slots=True)
class FileDigest:
    """One file of a table, its path below the directory."""

    path: str
    rows: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows, and how many of them are marked unreadable."""

    rows: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of either kind.

    Attributes:
        instance_id: BookKeeper's id of the ledger storage; None where the source does not tell (bookies' HTTP API).
        cluster_name: Pulsar's name of the cluster, if there is exactly one in the store.
        ledgers_root: BookKeeper's root path in the metadata store.
        zxids: when it was read, in the store's order.
        as_of: when it was read, in the store's time; None for a source that does not tell.
        counts: rows by subtree (of a dump's nodes) and by table.
        left_out: what was not read, because the user said so.
        allows_deletion: whether a ledger that nothing here references may be deleted for it, given the other guards.
        reservations: why it may not.
        machine_times: when it was made by this machine's clock, for people; never for telling ages.
    """

    kind: Kind
    source: Source
    tool_version: str
    ledgers_root: str
    instance_id: str | None
    cluster_name: str | None
    zxids: OrderRange
    as_of: Moment | None
    counts: Mapping[str, Rows]
    left_out: tuple[str, ...]
    allows_deletion: bool
    reservations: tuple[str, ...]
    proof: Proof
    files: tuple[FileDigest, ...] = ()
    machine_times: tuple[int, int] = (0, 0)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": self.kind.value,
            "formatVersion": FORMAT_VERSION,
            "complete": True,
            "tool": {"name": "pulsar-sidecar", "version": self.tool_version},
            "source": {"kind": self.source.kind.value, "address": self.source.address},
            "instanceId": self.instance_id,
            "clusterName": self.cluster_name,
            "ledgersRootPath": self.ledgers_root,
            "zxid": {"first": self.zxids.first, "last": self.zxids.last},
            "asOf": None if self.as_of is None else {"zxid": self.as_of.zxid, "storeTimeMs": self.as_of.store_time_ms},
            "mayCondemn": self.allows_deletion,
            "reservations": list(self.reservations),
            "leftOut": list(self.left_out),
            "counts": {name: {"rows": c.rows, "unreadable": c.unreadable} for name, c in sorted(self.counts.items())},
            "proof": {
                "startMarker": self.proof.start_marker,
                "endMarker": self.proof.end_marker,
                "checks": dict(self.proof.checks),
            },
            "files": [
                {"path": file.path, "rows": file.rows, "bytes": file.size_bytes, "sha256": file.sha256}
                for file in self.files
            ],
            "machineTimesMs": {"started": self.machine_times[0], "ended": self.machine_times[1]},
        }


def parse_manifest(document: Any) -> Manifest:
    """Read what `Manifest.document` wrote.

    Raises:
        InvalidInputError: not a manifest, of another version, or of something that is not complete.
    """
    try:
        if document["formatVersion"] != FORMAT_VERSION:
            raise InvalidInputError(f"format {document['formatVersion']} is not known to this version; upgrade first")
        if document["complete"] is not True:
            raise InvalidInputError("it is not complete; make it again")
        return _parsed(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"this is no manifest of a dump or a listing ({error!r})") from error


def _parsed(document: Any) -> Manifest:
    as_of, zxid, proof = document["asOf"], document["zxid"], document["proof"]
    times = document["machineTimesMs"]
    return Manifest(
        kind=Kind(document["kind"]),
        source=Source(SourceKind(document["source"]["kind"]), document["source"]["address"]),
        tool_version=document["tool"]["version"],
        ledgers_root=document["ledgersRootPath"],
        instance_id=document["instanceId"],
        cluster_name=document["clusterName"],
        zxids=OrderRange(zxid["first"], zxid["last"]),
        as_of=None if as_of is None else Moment(as_of["zxid"], as_of["storeTimeMs"]),
        counts={name: Rows(count["rows"], count["unreadable"]) for name, count in document["counts"].items()},
        left_out=tuple(document["leftOut"]),
        allows_deletion=document["mayCondemn"],
        reservations=tuple(document["reservations"]),
        proof=Proof(proof["startMarker"], proof["endMarker"], proof["checks"]),
        files=tuple(
            FileDigest(file["path"], file["rows"], file["bytes"], file["sha256"]) for file in document["files"]
        ),
        machine_times=(times["started"], times["ended"]),
    )
