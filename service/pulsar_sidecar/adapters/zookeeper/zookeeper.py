"""The metadata store's ZooKeeper driver: Pulsar's default store, over kazoo.

Invariant: every response is ZooKeeper's own. Reads are as fresh as the moment of the call (a ``sync`` on the same
connection precedes each), absent means that ZooKeeper returned NoNode, and a write whose response was lost is reported
as such.
"""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from functools import partial

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.states import ZnodeStat
from kazoo.security import Permissions, make_digest_acl_credential

from pulsar_sidecar.adapters.metadata_access import CLOCK_PATH, DEFAULT_OPTIONS, SessionOptions, StoreCredential
from pulsar_sidecar.adapters.metadata_requests import (
    check_data,
    check_deletions,
    check_path,
    check_removable,
    check_version,
)
from pulsar_sidecar.adapters.sequential_ledger_ids import SequentialLedgerIds
from pulsar_sidecar.adapters.zookeeper.multidelete import BYSTANDERS, GuardedDeletions
from pulsar_sidecar.adapters.zookeeper.multiread import list_children, read_nodes
from pulsar_sidecar.adapters.zookeeper.session import Deadline, KazooSession
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import (
    DeletionLimit,
    DeletionResult,
    FixedLimit,
    GuardedDeletion,
    NewNode,
    Node,
    always,
)
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.reports.formatting import format_count

_LISTING_TRIES = 5
_WHATEVER_VERSION = -1
_REFRESH_SECONDS = 30.0
_MAX_ROUND_TRIP_SECONDS = 2.0
_GOOD_ROUND_TRIP_SECONDS = 0.1
"""Round trip that needs no retry: the time is off by half a round trip at most."""
_STAMP_TRIES = 3
_NUMBER_PREFIX = "ID-"
_DIGEST = "digest"


class ZooKeeperMetadataStore(KazooSession):
    """`model.metadata.MetadataStore` on one ZooKeeper session, for any number of threads."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        options: SessionOptions = DEFAULT_OPTIONS,
        *,
        limit: DeletionLimit | None = None,
    ) -> None:
        """Connect as `KazooSession`; without ``limit`` as many deletions are in flight as keep ZooKeeper busy."""
        super().__init__(url, clock, options)
        self._limit = limit or FixedLimit()
        self._turn = threading.Lock()
        self._store_clock = StoreClock(self, clock)

    def read(self, path: str) -> Node | None:
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Read as `MetadataStore.read_many`; nodes are read at different moments, all of them after the call began."""
        for path in paths:
            check_path(path)
        return read_nodes(self, paths)

    def children(self, path: str) -> list[str] | None:
        check_path(path)

        def attempt(client: KazooClient, deadline: Deadline) -> tuple[list[str], ZnodeStat]:
            synced = client.sync_async("/")
            listing = client.get_children_async(path, include_data=True)
            deadline.answer(synced)
            return deadline.answer(listing)

        for _ in range(_LISTING_TRIES):
            try:
                names, stat = self.reading(f"list {path}", attempt)
            except NoNodeError:
                return None
            if len(names) == stat.numChildren:
                return sorted(names)
        raise TemporaryError(f"the children of {path} changed during each of {_LISTING_TRIES} listings; list again")

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        for path in paths:
            check_path(path)
        return list_children(self, paths)

    def create_together(self, nodes: Sequence[NewNode]) -> None:
        """Create as `MetadataStore.create_together`; missing parents stay when the nodes cannot be created."""
        for node in nodes:
            check_data(node.path, node.data)
        what = f"create {nodes[0].path}" + (
            f" and {format_count(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
        )
        try:
            try:
                self._change_together(what, partial(_creations, nodes))
            except NoNodeError:
                made = {node.path for node in nodes}
                for node in nodes:
                    if node.path.rpartition("/")[0] not in made:
                        self.reading(f"create the parents of {node.path}", partial(create_parents, node.path))
                self._change_together(what, partial(_creations, nodes))
        except NodeExistsError as error:
            raise AlreadyExistsError(f"could not {what}: one already exists") from error
        except (NoNodeError, NoChildrenForEphemeralsError) as error:
            raise TemporaryError(f"could not {what}: a parent was removed at the same moment; try again") from error

    def delete_together(self, paths: Sequence[str]) -> None:
        for path in paths:
            check_removable(path)
        what = f"delete {paths[0]}" + (f" and {len(paths) - 1} more nodes" if len(paths) > 1 else "")
        try:
            self._change_together(what, partial(_removals, paths))
        except (NoNodeError, NotEmptyError) as error:
            raise ConflictError(f"could not {what}: one is gone or has children; read them again") from error

    def _change_together(self, what: str, add: Callable[[TransactionRequest], None]) -> None:
        def attempt(client: KazooClient, deadline: Deadline) -> None:
            transaction = client.transaction()
            add(transaction)
            for answer in deadline.answer(transaction.commit_async()):
                if isinstance(answer, Exception) and not isinstance(answer, BYSTANDERS):
                    raise answer

        self.writing(what, attempt)

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        """Create as `MetadataStore.create`; missing parents stay when the node itself cannot be created."""
        check_data(path, data)

        def create(client: KazooClient, deadline: Deadline) -> ZnodeStat:
            made = client.create_async(path, data, ephemeral=ephemeral, include_data=True)
            return deadline.answer(made)[1]

        try:
            try:
                stat = self.writing(f"create {path}", create)
            except NoNodeError:
                self.reading(f"create the parents of {path}", partial(create_parents, path))
                stat = self.writing(f"create {path}", create)
        except NodeExistsError as error:
            raise AlreadyExistsError(f"{path} already exists") from error
        except NoChildrenForEphemeralsError as error:
            raise ConflictError(f"{path} lies below an ephemeral node, which cannot have children") from error
        except NoNodeError as error:
            raise TemporaryError(f"the parent of {path} was removed at the same moment; try again") from error
        return Node(
            path,
            data,
            version=NodeVersion(stat.version),
            created_ms=stat.ctime,
            modified_ms=stat.mtime,
            created_order=stat.czxid,
            children_count=stat.numChildren,
            ephemeral=stat.ephemeralOwner != 0,
        )

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        check_data(path, data)
        check_version(version)
        try:
            stat = self.writing(
                f"write {path}", lambda client, deadline: deadline.answer(client.set_async(path, data, version))
            )
        except NoNodeError as error:
            raise NotFoundError(f"{path} is gone") from error
        except BadVersionError as error:
            raise ConflictError(f"{path} is no longer at version {version}; read it again") from error
        return NodeVersion(stat.version)

    def delete(
        self, path: str, version: NodeVersion | None = None, modified_order: int | None = None
    ) -> DeletionResult:
        check_removable(path, version)
        at = _WHATEVER_VERSION if version is None else version
        try:
            self.writing(f"delete {path}", lambda client, deadline: deadline.answer(client.delete_async(path, at)))
        except NoNodeError:
            return DeletionResult.GONE
        except (BadVersionError, NotEmptyError):
            return DeletionResult.CONFLICT
        except OutcomeUnknownError:
            return DeletionResult.UNKNOWN
        return DeletionResult.DELETED

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        """Delete as `MetadataStore.delete_many`; parents that become empty stay, as BookKeeper leaves them."""
        check_deletions(deletions)
        # The limit applies to all calls together, so they take turns; a single deletion does not wait for thousands.
        with self._turn if len(deletions) > 1 else nullcontext():
            return GuardedDeletions(self, deletions, self._limit, may_send).carry_out()

    def may_delete_below(self, path: str) -> bool:
        """Return True if the credential may delete children of the node, or if only the server knows.

        Only the server knows for a missing node, and for a list with an identity that is not a digest (``sasl``).
        """
        try:
            found, _ = self.reading(
                f"read the access control list of {path}",
                lambda client, deadline: deadline.answer(client.get_acls_async(path)),
                (NoNodeError, NoAuthError),
            )
        except NoNodeError:
            return True
        except NoAuthError:  # this credential may not even read
            return False
        able = [acl.id for acl in found if acl.perms & Permissions.DELETE]
        own = _digests(self._options.credential)
        return any(identity.scheme != _DIGEST or identity.id in own for identity in able)

    def now_ms(self) -> int:
        return self._store_clock.now_ms()


class StoreClock:
    """Clock of the metadata store, for the ages of nodes; several sidecars may share its node.

    Invariant: this machine's wall clock is never used. Every 30 seconds the sidecar writes a node, the store stamps it
    with its time, and a clock that cannot be set measures the time since then.
    """

    def __init__(self, session: KazooSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._lock = threading.Lock()
        self._offset_ms = 0.0
        self._measured: tuple[float, int | None] = 0.0, None

    def now_ms(self) -> int:
        """Return the store's time, at most a second off.

        Raises:
            TemporaryError: it could not be measured.
        """
        with self._lock:
            at, epoch = self._measured
            # Another session may be with another server, after another leader was elected.
            if epoch != self._session.epoch or self._clock.monotonic_seconds() - at >= _REFRESH_SECONDS:
                self._measure()
            return int(self._offset_ms + self._clock.monotonic_seconds() * 1000)

    def _measure(self) -> None:
        found: list[tuple[float, float, tuple[float, int]]] = []
        while len(found) < _STAMP_TRIES and not (found and found[-1][0] <= _GOOD_ROUND_TRIP_SECONDS):
            epoch = self._session.epoch
            started, stamped_ms, ended = self._session.reading("measure the store's clock", self._stamp)
            found.append((ended - started, stamped_ms - (started + ended) / 2 * 1000, (ended, epoch)))
        round_trip_seconds, offset_ms, measured = min(found)
        if round_trip_seconds > _MAX_ROUND_TRIP_SECONDS:
            raise TemporaryError(
                f"ZooKeeper took longer than {_MAX_ROUND_TRIP_SECONDS:.0f} s for a write, too long to read its clock; "
                "try again when it is less busy"
            )
        self._offset_ms, self._measured = offset_ms, measured

    def _stamp(self, client: KazooClient, deadline: Deadline) -> tuple[float, int, float]:
        # Writing it twice does no harm, so this may be retried like a read.
        started = self._clock.monotonic_seconds()
        try:
            stat = deadline.answer(client.set_async(CLOCK_PATH, b""))
        except NoNodeError:
            create_parents(f"{CLOCK_PATH}/", client, deadline)
            started = self._clock.monotonic_seconds()
            stat = deadline.answer(client.set_async(CLOCK_PATH, b""))
        return started, stat.mtime, self._clock.monotonic_seconds()


class ZooKeeperLedgerIds(SequentialLedgerIds):
    """`SequentialLedgerIds`: an id is the number of an ephemeral sequential node, which is deleted at once."""

    def __init__(self, store: ZooKeeperMetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        super().__init__(store, ledgers_root)
        self._session = store

    def _number_below(self, folder: str) -> int:
        def create(client: KazooClient, deadline: Deadline) -> str:
            made = client.create_async(f"{folder}/{_NUMBER_PREFIX}", b"", ephemeral=True, sequence=True)
            return deadline.answer(made)

        try:
            path = self._session.writing(f"take a ledger id below {folder}", create)
        except NoNodeError:
            self.make(folder)
            return self._number_below(folder)
        # A node that cannot be deleted now is gone at the end of the session.
        self._session.delete(path)
        return int(path.rpartition(_NUMBER_PREFIX)[2])


def _digests(credential: StoreCredential | None) -> Collection[str]:
    """Return the credential's names in lists: its digest, which ZooKeeper shows only with rights to change them."""
    if credential is None or credential.scheme != _DIGEST:
        return ()
    user, _, password = credential.secret.partition(":")
    return make_digest_acl_credential(user, password), f"{user}:x"


def _creations(nodes: Sequence[NewNode], transaction: TransactionRequest) -> None:
    for node in nodes:
        transaction.create(node.path, node.data, ephemeral=node.ephemeral)


def _removals(paths: Sequence[str], transaction: TransactionRequest) -> None:
    for path in paths:
        transaction.delete(path)


def create_parents(path: str, client: KazooClient, deadline: Deadline) -> None:
    """Create a node's missing parents; for `KazooSession.reading`."""
    # Creating a parent twice does no harm, so this may be retried like a read.
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        try:
            deadline.answer(client.create_async("/" + "/".join(parts[:depth])))
        except NodeExistsError:
            continue
