"""What a dump or a listing records about itself: where it is from, what it holds, and how we know that it is whole.

Invariant: a manifest is written last, and only of something that is complete; a reader refuses what it does
not understand.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from pulsar_sidecar.analysis.documents import Document, FileDigest
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import InvalidInputError

FORMAT_VERSION = 1
_ENVELOPE = {"formatVersion", "complete", "tool", "machineTimesMs"}
LEDGERS_LEFT_OUT = "ledgers"


class InputKind(StrEnum):
    """What a directory holds."""

    DUMP = "metadata-dump"
    LISTING = "ledger-listing"


class SourceKind(StrEnum):
    """Where something was read; other metadata stores get kinds of their own."""

    ZOOKEEPER = "zk"
    ZOOKEEPER_SNAPSHOT = "zk-snapshot"
    BOOKIE_HTTP = "bookie-http"


@decodable
class Source(Document, frozen=True):
    """Where something was read; ``address`` holds no credential."""

    kind: SourceKind
    address: str


@decodable
class Proof(Document, frozen=True):
    """Why a reading is whole.

    Attributes:
        start_marker: what stood at the beginning, in words.
        end_marker: what stood at the end.
        checks: how many comparisons of which kind were made, all of them in agreement.
    """

    start_marker: str
    end_marker: str
    checks: Mapping[str, int] = msgspec.field(default_factory=dict)


@decodable
class OrderRange(Document, frozen=True):
    """The store's order of changes (ZooKeeper ``zxid``) between which a source was read.

    Everything was read as of some moment not before ``first``; no change after ``last`` is in it. Both are None for a
    source without one.
    """

    first: int | None
    last: int | None


@decodable
class NewestWrite(Document, frozen=True):
    """The newest write that was seen: its order and the store's own time of it, from which ages are computed."""

    zxid: int
    store_time_ms: int


@decodable
class RowCounts(Document, frozen=True):
    """How many rows, and how many of them are marked unreadable."""

    rows: int = 0
    unreadable: int = 0


@decodable
class Manifest(Document, frozen=True, kw_only=True):
    """The manifest of either kind.

    Attributes:
        instance_id: BookKeeper's id of the ledger storage; None from a source without it (bookies' HTTP API).
        cluster_name: Pulsar's name of the cluster, if there is exactly one in the store.
        ledgers_root: BookKeeper's root path in the metadata store.
        zxids: when it was read, in the store's order.
        as_of: when it was read, in the store's time; None for a source that does not report it.
        counts: rows by subtree (of a dump's nodes) and by table.
        left_out: what was not read, because the user chose so.
        allows_deletion: whether a ledger that nothing here references may be deleted for it, given the other guards.
        reservations: why it may not.
        machine_times: when it was made by this machine's clock, for people; never for ages.
    """

    kind: InputKind
    source: Source
    tool_version: str
    instance_id: str | None
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
        """As JSON has it."""
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
    """Read what `Manifest.document` wrote; everything else is an `InvalidInputError`."""
    try:
        if document["formatVersion"] != FORMAT_VERSION:
            raise InvalidInputError(f"format {document['formatVersion']} is not known to this version; upgrade first")
        if document["complete"] is not True:
            raise InvalidInputError("it is not complete; make it again")
        parts = {name: document[name] for name in document.keys() - _ENVELOPE}
        times = document["machineTimesMs"]
        parts.update(toolVersion=document["tool"]["version"], machineTimes=[times["started"], times["ended"]])
        manifest = msgspec.convert(parts, Manifest)
    except (KeyError, TypeError, AttributeError, msgspec.ValidationError) as error:
        raise InvalidInputError(f"this is not the manifest of a dump or a listing ({error!r})") from error
    # A field that has a default must be written all the same: without `files`, for example, nothing would be compared.
    if manifest.document() != document:
        raise InvalidInputError("this is not the manifest of a dump or a listing: a field is missing")
    return manifest
