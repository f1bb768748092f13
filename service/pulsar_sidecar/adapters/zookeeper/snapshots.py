"""Snapshot files of ZooKeeper's data directory as sources of a dump.

A dump is never better than its source, so a source states its limitation, which rules out deletions: transactions after
the file was written are only in ZooKeeper's log.
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.adapters.zookeeper.snapshot_format import DamagedSnapshotError, SnapshotReader, decompressed
from pulsar_sidecar.features.audit.ports import ReadResult
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, Proof, Source, SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

_SNAPSHOT_NAME = re.compile(r"snapshot\.(?P<zxid>[0-9a-f]{1,16})(\.gz|\.snappy)?")
_LATER = (
    "a snapshot's file lacks every transaction after its own zxid, which are only in the log beside it: take a dump "
    "from zk:// to delete anything"
)


class SnapshotFile:
    """`audit.ports.NodeSource` of a file that ZooKeeper wrote into its data directory, compressed or not."""

    def __init__(self, path: Path, *, chroot: str = "", skip: tuple[str, ...] = ()) -> None:
        """Use the file at ``path``; skip paths below the chroot with a beginning in ``skip``.

        Raises:
            InvalidInputError: ZooKeeper gives no file a name like this.
        """
        self.source = Source(SourceKind.ZOOKEEPER_SNAPSHOT, str(path))
        self._path = path
        self._named_zxid = _named_zxid(path.name)
        self._chroot = chroot
        self._skip = tuple((chroot + beginning).encode() for beginning in skip)
        self._ending: ReadResult | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._opened() as stream:
            reader = SnapshotReader(decompressed(stream), self._skip)
            found_chroot = not self._chroot
            for batch in reader.batches():
                below = self._below_chroot(batch)
                found_chroot = found_chroot or bool(below.num_rows)
                if below.num_rows:
                    yield below
            if not found_chroot:
                raise TemporaryError(f"the snapshot has no {self._chroot}; check --chroot")
            self._ending = self._ended(reader)

    def _opened(self) -> io.BufferedReader:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise InvalidInputError(f"{self._path} cannot be read ({error.strerror})") from error

    def ending(self) -> ReadResult:
        """Return the result that both ends of the snapshot record."""
        if self._ending is None:
            raise TemporaryError("the snapshot was not read to its end; begin again")
        return self._ending

    def _ended(self, reader: SnapshotReader) -> ReadResult:
        first_zxid, last_zxid = self._named_zxid, reader.last_zxid
        if last_zxid is not None and last_zxid < first_zxid:
            raise DamagedSnapshotError(
                f"the snapshot ends at zxid 0x{last_zxid:x}, before the 0x{first_zxid:x} of its name; "
                "use a snapshot under the name that ZooKeeper gave it"
            )
        proof = Proof(
            f"ZKSN format 2, called by zxid 0x{first_zxid:x}",
            "seal and Adler-32 checksum of the whole stream agree, nothing follows",
            {"nodesInSnapshot": reader.nodes, "bytesChecked": reader.read_bytes},
        )
        return ReadResult(OrderRange(first_zxid, last_zxid), proof, (_LATER,))

    def _below_chroot(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        paths = batch.column("path")
        if self._chroot:
            below = pc.or_(pc.equal(paths, self._chroot), pc.starts_with(paths, f"{self._chroot}/"))
            batch = batch.filter(below)
            paths = pc.utf8_slice_codeunits(batch.column("path"), len(self._chroot))
        # ZooKeeper writes the root's path as an empty string.
        return batch.set_column(0, batch.schema.field(0), pc.if_else(pc.equal(paths, ""), "/", paths))


def _named_zxid(name: str) -> int:
    """Return the zxid in a snapshot's name: ZooKeeper had applied every transaction up to it."""
    match = _SNAPSHOT_NAME.fullmatch(name)
    if match is None:
        raise InvalidInputError(
            f"{name!r} is not a name of a snapshot; keep ZooKeeper's own, such as snapshot.1f3a: only the "
            "name has the transaction at which the file begins"
        )
    return int(match["zxid"], 16)
