"""Snapshots as the source of a dump: a file of ZooKeeper's, or what an AdminServer streams.

A dump is never better than its source, so a source names what speaks against deleting anything because of it. A file
does speak against it: what happened after it was written is only in ZooKeeper's log.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import requests
from urllib3.exceptions import HTTPError, LocationParseError

from pulsar_sidecar.adapters.metadata.addressing import ZooKeeperCredential
from pulsar_sidecar.adapters.metadata.snapshot_format import DamagedSnapshotError, SnapshotReader, decompressed
from pulsar_sidecar.audit.ports import ReadResult
from pulsar_sidecar.audit.sources.manifests import OrderRange, Proof, Source, SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError, UnreachableError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.model.tls import trusting

_SNAPSHOT_NAME = re.compile(r"snapshot\.(?P<zxid>[0-9a-f]{1,16})(\.gz|\.snappy)?")
_LATER = (
    "a snapshot's file lacks every transaction after its own zxid, which are only in the log beside it: take a dump "
    "from zk:// or zk-admin: to delete anything"
)
_ANONYMOUS = ZooKeeperCredential("digest", "pulsar-sidecar:")
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 300.0
_BUFFER_BYTES = 1024 * 1024
_OK = 200
_SAFE_VERSION = (3, 9, 4)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_ADVICE = {
    401: "it takes no such credential: give one of an enabled scheme",
    403: "the credential lacks rights: it needs all of them on /; give --metadata-store-auth digest:user:password",
    404: "it has no snapshot command: that takes ZooKeeper 3.9 or later; use zk:// instead",
    429: "it was asked a short while ago; wait (admin.rateLimiterIntervalInMS, 5 minutes by default)",
    503: "the command is switched off; set admin.snapshot.enabled=true",
}

OpenSnapshot = tuple[io.BufferedReader, int]
"""A snapshot's bytes and the zxid that it is called by: ZooKeeper had applied every transaction up to it."""


class SnapshotNodes:
    """`audit.ports.NodeSource` of a snapshot, from wherever it comes."""

    def __init__(
        self,
        source: Source,
        opened: Callable[[], AbstractContextManager[OpenSnapshot]],
        *,
        chroot: str = "",
        skip: tuple[str, ...] = (),
        reservations: tuple[str, ...] = (),
    ) -> None:
        """``skip`` has beginnings of paths below the chroot that are left out."""
        self.source = source
        self._opened = opened
        self._chroot = chroot
        self._skip = tuple((chroot + beginning).encode() for beginning in skip)
        self._reservations = reservations
        self._ending: ReadResult | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self._opened() as (stream, first_zxid):
            reader = SnapshotReader(decompressed(stream), self._skip)
            found_chroot = not self._chroot
            for batch in reader.batches():
                below = self._below_chroot(batch)
                found_chroot = found_chroot or bool(below.num_rows)
                if below.num_rows:
                    yield below
            if not found_chroot:
                raise TemporaryError(f"the snapshot has no {self._chroot}; check --chroot")
            self._ending = self._ended(first_zxid, reader)

    def ending(self) -> ReadResult:
        """What the snapshot's ends record."""
        if self._ending is None:
            raise TemporaryError("the snapshot was not read to its end; begin again")
        return self._ending

    def _ended(self, first_zxid: int, reader: SnapshotReader) -> ReadResult:
        last_zxid = reader.last_zxid
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
        return ReadResult(OrderRange(first_zxid, last_zxid), proof, self._reservations)

    def _below_chroot(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        paths = batch.column("path")
        if self._chroot:
            below = pc.or_(pc.equal(paths, self._chroot), pc.starts_with(paths, f"{self._chroot}/"))
            batch = batch.filter(below)
            paths = pc.utf8_slice_codeunits(batch.column("path"), len(self._chroot))
        # ZooKeeper writes the root's path as an empty text.
        return batch.set_column(0, batch.schema.field(0), pc.if_else(pc.equal(paths, ""), "/", paths))


def snapshot_file(path: Path, *, chroot: str = "", skip: tuple[str, ...] = ()) -> SnapshotNodes:
    """A file that ZooKeeper wrote into its data directory, compressed or not.

    Raises:
        InvalidInputError: its name is not one that ZooKeeper gives.
    """
    match = _SNAPSHOT_NAME.fullmatch(path.name)
    if match is None:
        raise InvalidInputError(
            f"{path.name!r} is not a name of a snapshot; keep ZooKeeper's own, such as snapshot.1f3a: only the "
            "name has the transaction at which the file begins"
        )
    zxid = int(match["zxid"], 16)

    @contextmanager
    def opened() -> Iterator[OpenSnapshot]:
        try:
            stream = path.open("rb")
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read ({error.strerror})") from error
        with stream:
            yield stream, zxid

    source = Source(SourceKind.ZOOKEEPER_SNAPSHOT, str(path))
    return SnapshotNodes(source, opened, chroot=chroot, skip=skip, reservations=(_LATER,))


class AdminServer(SnapshotNodes):
    """One AdminServer, ``http://host:port`` or ``https://host:port`` (3.9 and later).

    Its snapshot is fuzzy like every one, but it begins when it is asked for, and the header has its zxid. The
    server wants a credential even where its root is open to every client, and grants the snapshot to users that have
    all rights on ``/``.
    """

    def __init__(
        self,
        url: str,
        report: Report,
        *,
        credential: ZooKeeperCredential | None = None,
        trusted_certificates: Path | None = None,
        chroot: str = "",
        skip: tuple[str, ...] = (),
    ) -> None:
        self._url = url.rstrip("/")
        self._report = report
        self._credential = credential or _ANONYMOUS
        self._session = requests.Session()
        # Nothing of the environment (proxies, netrc) is sent to it.
        self._session.trust_env = False
        trusting(trusted_certificates)  # requests would fail for a file that it cannot use only at the first request
        if trusted_certificates is not None:
            self._session.verify = str(trusted_certificates)
        super().__init__(Source(SourceKind.ZOOKEEPER_ADMIN, self._url), self._snapshot, chroot=chroot, skip=skip)

    @contextmanager
    def _snapshot(self) -> Iterator[OpenSnapshot]:
        self._warn_of_old_versions()
        try:
            with self._ask("/commands/snapshot?streaming=true", stream=True) as response:
                if response.status_code != _OK:
                    advice = _ADVICE.get(response.status_code, "look into ZooKeeper's log")
                    raise TemporaryError(f"the AdminServer at {self._url} answered {response.status_code}: {advice}")
                response.raw.auto_close = False
                stream = io.BufferedReader(response.raw, _BUFFER_BYTES)
                yield stream, _last_zxid(response)
        except HTTPError as error:
            raise UnreachableError(f"the stream from {self._url} broke off ({error}); begin again") from error

    def _ask(self, path: str, *, stream: bool = False) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if stream:
            headers["Authorization"] = f"{self._credential.scheme} {self._credential.secret}"
        try:
            return self._session.get(
                self._url + path,
                headers=headers,
                stream=stream,
                timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                allow_redirects=False,
            )
        except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, LocationParseError) as error:
            raise InvalidInputError(f"{self._url!r} is not an address of an AdminServer ({error})") from error
        except requests.RequestException as error:
            raise UnreachableError(
                f"the AdminServer at {self._url} gave no answer ({error}); check admin.enableServer and the address"
            ) from error

    def _warn_of_old_versions(self) -> None:
        match = _VERSION.search(self._ask("/commands/srvr").text)
        if match is None:
            return
        version = tuple(int(part) for part in match.groups())
        if version < _SAFE_VERSION:
            self._report(
                f"ZooKeeper {match[0]} hands snapshots to users with few rights (CVE-2025-58457); "
                "upgrade to 3.9.4 or close the AdminServer's port"
            )


def _last_zxid(response: requests.Response) -> int:
    text = response.headers.get("last_zxid", "")
    try:
        return int(text, 16)
    except ValueError as error:
        raise TemporaryError(f"the AdminServer's answer has no last_zxid ({text!r:.40}); is this ZooKeeper?") from error
