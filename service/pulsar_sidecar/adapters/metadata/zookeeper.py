"""The metadata store's ZooKeeper driver: Pulsar's default store, over kazoo.

Invariant: what is said here was said by ZooKeeper. Reads are as fresh as the moment of the call (each is preceded by
a ``sync`` on the same connection), absent means that ZooKeeper answered NoNode, and a write whose answer was lost is
reported as such.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from kazoo.protocol.states import ZnodeStat

from pulsar_sidecar.adapters.metadata.limits import (
    check_data,
    check_deletions,
    check_path,
    check_removable,
    check_version,
)
from pulsar_sidecar.adapters.metadata.multidelete import GuardedDeleter
from pulsar_sidecar.adapters.metadata.multiread import MultiReader
from pulsar_sidecar.adapters.metadata.session import (
    Attempt,
    KazooSession,
    Patience,
    SessionSettings,
    ZooKeeperCredential,
)
from pulsar_sidecar.adapters.metadata.store_clock import StoreClock
from pulsar_sidecar.adapters.metadata.url import parse_metadata_store_url
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionLimit, DeletionResult, FixedLimit, GuardedDeletion, Node, always

_LISTING_TRIES = 5
_WHATEVER_VERSION = -1


def open_metadata_store(
    url: str,
    clock: Clock,
    *,
    session_timeout_ms: int = 30_000,
    patience_seconds: float = 10.0,
    credential: ZooKeeperCredential | None = None,
    limit: DeletionLimit | None = None,
) -> "ZooKeeperMetadataStore":
    """Open the store that Pulsar's ``metadataStoreUrl`` names; returns at once, the first call waits for a connection.

    Args:
        url: see `parse_metadata_store_url`.
        clock: measures waiting times; wall time is only ever the store's own.
        session_timeout_ms: as Pulsar's ``metadataStoreSessionTimeoutMillis``.
        patience_seconds: how long a call waits without progress before it raises `TemporaryError`.
        credential: for clusters whose nodes have access control lists.
        limit: how many deletions may be in flight; none: as many as keep ZooKeeper busy.

    Raises:
        InvalidInputError: the URL is malformed or names a store without a driver.
    """
    hosts = parse_metadata_store_url(url).hosts
    return ZooKeeperMetadataStore(
        SessionSettings(hosts, session_timeout_ms, patience_seconds, credential), clock, limit
    )


class ZooKeeperMetadataStore:
    """`model.metadata.MetadataStore` on one ZooKeeper session, for any number of threads."""

    def __init__(self, settings: SessionSettings, clock: Clock, limit: DeletionLimit | None = None) -> None:
        self._session = KazooSession(settings, clock)
        self._reader = MultiReader(self._session)
        self._deleter = GuardedDeleter(self._session, self._reader, limit or FixedLimit())
        self._clock = StoreClock(self._session, clock)

    @property
    def session_epoch(self) -> int:
        """0 before the first session, then one more with every new one.

        Ephemeral nodes of an earlier session are gone or going: whoever made some makes them again when this grows.
        """
        return self._session.epoch

    def read(self, path: str) -> Node | None:
        """See `MetadataStore.read`."""
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """See `MetadataStore.read_many`; nodes are read at different moments, all of them after the call began."""
        for path in paths:
            check_path(path)
        return self._reader.read_many(paths)

    def children(self, path: str) -> list[str] | None:
        """See `MetadataStore.children`."""
        check_path(path)

        def attempt(client: KazooClient, patience: Patience) -> tuple[list[str], ZnodeStat]:
            synced = client.sync_async("/")
            listing = client.get_children_async(path, include_data=True)
            patience.answer(synced)
            return patience.answer(listing)

        for _ in range(_LISTING_TRIES):
            try:
                names, stat = self._session.reading(f"list {path}", attempt)
            except NoNodeError:
                return None
            if len(names) == stat.numChildren:
                return sorted(names)
        raise TemporaryError(f"the children of {path} changed during each of {_LISTING_TRIES} listings; list again")

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        """See `MetadataStore.create`; missing parents stay when the node itself cannot be created."""
        check_path(path)
        check_data(path, data)

        def attempt(client: KazooClient, patience: Patience) -> ZnodeStat:
            return patience.answer(
                client.create_async(path, data, ephemeral=ephemeral, include_data=True),
            )[1]

        try:
            stat = self._create_with_parents(path, attempt)
        except NodeExistsError as error:
            raise AlreadyExistsError(f"{path} is there already") from error
        except NoChildrenForEphemeralsError as error:
            raise ConflictError(f"{path} lies below an ephemeral node, which cannot have children") from error
        except NoNodeError as error:
            raise TemporaryError(f"the parent of {path} was removed at the same moment; try again") from error
        return _node(path, data, stat)

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        """See `MetadataStore.write`."""
        check_path(path)
        check_data(path, data)
        check_version(version)
        try:
            stat = self._session.writing(
                f"write {path}",
                lambda client, patience: patience.answer(client.set_async(path, data, version)),
            )
        except NoNodeError as error:
            raise NotFoundError(f"{path} is gone") from error
        except BadVersionError as error:
            raise ConflictError(f"{path} is not at version {version} any more; read it again") from error
        return NodeVersion(stat.version)

    def delete(self, path: str, version: NodeVersion | None = None) -> DeletionResult:
        """See `MetadataStore.delete`."""
        check_removable(path)
        if version is not None:
            check_version(version)
        at = _WHATEVER_VERSION if version is None else version
        try:
            self._session.writing(
                f"delete {path}", lambda client, patience: patience.answer(client.delete_async(path, at))
            )
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
        """See `MetadataStore.delete_many`; parents that become empty stay, as BookKeeper leaves them."""
        check_deletions(deletions)
        return self._deleter.delete_many(deletions, may_send)

    def now_ms(self) -> int:
        """See `MetadataStore.now_ms`."""
        return self._clock.now_ms()

    def close(self) -> None:
        """End the session; its ephemeral nodes vanish, and every later call raises `TemporaryError`."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create_with_parents(self, path: str, attempt: Attempt[ZnodeStat]) -> ZnodeStat:
        try:
            return self._session.writing(f"create {path}", attempt)
        except NoNodeError:
            self._session.reading(f"create the parents of {path}", partial(_create_parents, path))
            return self._session.writing(f"create {path}", attempt)


def _create_parents(path: str, client: KazooClient, patience: Patience) -> None:
    # Making a parent twice does no harm, so this may be repeated like a read.
    parts = path.split("/")[1:-1]
    for depth in range(1, len(parts) + 1):
        try:
            patience.answer(client.create_async("/" + "/".join(parts[:depth])))
        except NodeExistsError:
            continue


def _node(path: str, data: bytes, stat: ZnodeStat) -> Node:
    return Node(
        path=path,
        data=data,
        version=NodeVersion(stat.version),
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        created_order=stat.czxid,
        children_count=stat.numChildren,
        ephemeral=stat.ephemeralOwner != 0,
    )
