"""The metadata store's etcd driver, with keys as Pulsar's own `EtcdMetadataStore` writes them.

A node is the key of its path; its version is etcd's of the key less one, its order of creation the revision. Brokers
write no keys for parents: such a parent has children and cannot be read. Nodes that this driver creates get such keys.

Invariant: every change is one transaction, which compares versions (for deletions of read nodes, mod revisions) and
that nothing lies below a node to delete.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Final, Self

from pulsar_sidecar.adapters.etcd.gateway import (
    Answer,
    EtcdGateway,
    Key,
    RefusedError,
    below,
    encoded,
    keys_of,
    operations_of,
)
from pulsar_sidecar.adapters.etcd.lease import EtcdLease
from pulsar_sidecar.adapters.etcd.revision_times import REFRESH_SECONDS
from pulsar_sidecar.adapters.metadata_access import CLOCK_PATH, SessionOptions
from pulsar_sidecar.adapters.metadata_requests import (
    check_data,
    check_deletions,
    check_path,
    check_removable,
    check_version,
)
from pulsar_sidecar.adapters.sequential_ledger_ids import SequentialLedgerIds
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
    Guard,
    GuardedDeletion,
    NewNode,
    Node,
    always,
)
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.reports.formatting import format_count

_LOG = logging.getLogger(__name__)
MOST_OPERATIONS: Final = 128
"""etcd's default ``--max-txn-ops``, for the comparisons and for either branch, over all levels of a transaction."""
_MOST_READ = 100
_MUCH_BYTES = 2 * 1024 * 1024
_MOST_LISTED = 50
_PAGE_KEYS = 1_000
_ROOT = Node("/", b"", NodeVersion(0), 0, 0, 0, None, times_known=False)


class EtcdMetadataStore:
    """`model.metadata.MetadataStore` on one lease, for any number of threads."""

    def __init__(self, url: str, clock: Clock, options: SessionOptions, limit: DeletionLimit | None = None) -> None:
        """Prepare; without ``limit`` as many deletions are in flight as a transaction takes.

        Raises:
            InvalidInputError: the URL, the credential or a file of TLS cannot be used.
        """
        self.gateway = EtcdGateway(url, clock, options)
        self._clock = clock
        self._lease = EtcdLease(self.gateway)
        self._limit = limit or FixedLimit()
        self._turn = threading.Lock()
        self._keeping = threading.Lock()
        self._kept_at = float("-inf")

    @property
    def epoch(self) -> int:
        """Number of the lease, from 1: when it has grown, every earlier ephemeral node is gone or will be."""
        return self._lease.epoch

    def close(self) -> None:
        """Revoke the lease; its ephemeral nodes vanish, and every later call raises `TemporaryError`. Idempotent."""
        self._lease.close()
        self.gateway.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Reading -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> Node | None:
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            check_path(path)
        self.gateway.learn_times()
        found: list[Node | None] = []
        most = _MOST_READ
        while len(found) < len(paths):
            some = paths[len(found) : len(found) + most]
            what = f"read {some[0]}" if len(some) == 1 else f"read {len(some)} nodes"
            answers = self._transaction(what, [{"request_range": {"key": encoded(path)}} for path in some])
            nodes = [self._node(path, keys_of(answer)) for path, answer in zip(some, answers, strict=True)]
            size_bytes = sum(len(node.data) for node in nodes if node is not None)
            most = max(1, most // 4) if size_bytes > _MUCH_BYTES else min(_MOST_READ, most * 2)
            found += nodes
        return found

    def children(self, path: str) -> list[str] | None:
        return self.children_many([path])[0]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        for path in paths:
            check_path(path)
        found: list[list[str] | None] = []
        while len(found) < len(paths):
            some = paths[len(found) : len(found) + _MOST_LISTED]
            what = f"list {some[0]}" if len(some) == 1 else f"list {len(some)} nodes"
            asked = [[_listing(path), {"key": encoded(path), "count_only": True}] for path in some]
            answers = self._transaction(what, [{"request_range": each} for pair in asked for each in pair])
            for path, listing, own in zip(some, answers[::2], answers[1::2], strict=True):
                names = sorted(set(self._names(path, listing)))
                found.append(names if names or path == "/" or int(own.get("count", 0)) else None)
        return found

    def _names(self, path: str, listing: Answer) -> Iterator[str]:
        """Yield the first part of each key below a path, of all pages as of the first one's revision."""
        start = len(path) + (path != "/")
        revision = listing["header"]["revision"]
        while True:
            keys = [key.path for key in keys_of(listing)]
            yield from (key[start:].partition("/")[0] for key in keys)
            if not listing.get("more"):
                return
            name, slash, _ = keys[-1][start:].partition("/")
            # Of a child's own keys the first is enough: continue after all of them.
            following = f"{keys[-1][:start]}{name}0" if slash else f"{keys[-1]}\0"
            listing = self.gateway.reading(
                f"list {path}",
                "kv/range",
                {**_listing(path), "key": encoded(following), "revision": revision},
            )

    # Writing -----------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        check_data(path, data)
        revision, lease = self._create(f"create {path}", [NewNode(path, data, ephemeral)])
        return self._node(path, [Key(path, data, 1, revision, revision, lease)]) or _ROOT

    def create_together(self, nodes: Sequence[NewNode]) -> None:
        for node in nodes:
            check_data(node.path, node.data)
        rest = f" and {format_count(len(nodes) - 1, 'more node')}" if len(nodes) > 1 else ""
        self._create(f"create {nodes[0].path}{rest}", nodes)

    def _create(self, what: str, nodes: Sequence[NewNode]) -> tuple[int, int]:
        """Create nodes and their missing parents; return the revision, and the lease of ephemeral ones."""
        made = {node.path for node in nodes}
        if len(made) < len(nodes) or "/" in made:
            raise AlreadyExistsError(f"could not {what}: one already exists")
        parents = [path for path in dict.fromkeys(each for path in made for each in _above(path)) if path not in made]
        lease = self._lease.id() if any(node.ephemeral for node in nodes) else 0
        puts = [
            {
                "key": encoded(node.path),
                "value": encoded(node.data),
                **({"lease": str(lease)} if node.ephemeral else {}),
            }
            for node in nodes
        ]
        compare = [*map(_is_absent, made), *map(_has_no_lease, parents)]
        success = [*map(_made_if_absent, sorted(parents)), *({"request_put": put} for put in puts)]
        try:
            answer = self._commit(what, compare, success, [_exists(path) for path in made])
        except RefusedError as error:
            if lease and error.lease_not_found:
                self._lease.lost(lease)
                raise TemporaryError(f"could not {what}: the lease has expired; nothing was changed") from error
            raise
        if not answer.get("succeeded"):
            if any(map(_count, operations_of(answer))):
                raise AlreadyExistsError(f"could not {what}: one already exists")
            raise ConflictError(f"could not {what}: it lies below an ephemeral node, which cannot have children")
        return int(answer["header"]["revision"]), lease

    def delete_together(self, paths: Sequence[str]) -> None:
        for path in paths:
            check_removable(path)
        what = f"delete {paths[0]}" + (f" and {len(paths) - 1} more nodes" if len(paths) > 1 else "")
        conflict = f"could not {what}: one is gone or has children; read them again"
        compare: list[Answer] = []
        deleted: set[str] = set()
        for path in paths:
            if path in deleted:
                raise ConflictError(conflict)
            deleted.add(path)
            compare += [_exists_now(path), self._only_below(path, deleted, conflict)]
        answer = self._commit(what, compare, [_deletion(path) for path in paths])
        if not answer.get("succeeded"):
            raise ConflictError(conflict)

    def _only_below(self, path: str, deleted: set[str], conflict: str) -> Answer:
        """Return the comparison that a node has no descendants except nodes deleted before it."""
        if not any(each.startswith(f"{path}/") for each in deleted):
            return _has_nothing_below(path)
        answer = self.gateway.reading(
            f"list {path}", "kv/range", {**below(path), "keys_only": True, "limit": str(len(deleted) + 1)}
        )
        if not {key.path for key in keys_of(answer)} <= deleted:
            raise ConflictError(conflict)
        after = int(answer["header"]["revision"]) + 1
        return {**below(path), "target": "MOD", "result": "LESS", "mod_revision": str(after)}

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        check_data(path, data)
        check_version(version)
        put = {"key": encoded(path), "value": encoded(data), "ignore_lease": True}
        answer = self._commit(f"write {path}", [_is_at(path, version)], [{"request_put": put}], [_exists(path)])
        if answer.get("succeeded"):
            return NodeVersion(version + 1)
        if not _count(operations_of(answer)[0]):
            raise NotFoundError(f"{path} is gone")
        raise ConflictError(f"{path} is no longer at version {version}; read it again")

    def delete(
        self, path: str, version: NodeVersion | None = None, modified_order: int | None = None
    ) -> DeletionResult:
        check_removable(path, version)
        at = _exists_now(path) if version is None else _is_as_read(Guard(path, version, modified_order))
        compare = [_has_nothing_below(path), at]
        try:
            answer = self._commit(f"delete {path}", compare, [_deletion(path)], [_exists(path)])
        except OutcomeUnknownError:
            return DeletionResult.UNKNOWN
        if answer.get("succeeded"):
            return DeletionResult.DELETED
        return DeletionResult.CONFLICT if _count(operations_of(answer)[0]) else DeletionResult.GONE

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        """Delete as `MetadataStore.delete_many`; each deletion is a transaction of its own within a shared one.

        A deletion with more guards than etcd compares in one transaction (``--max-txn-ops``) is a CONFLICT.
        """
        check_deletions(deletions)
        results: list[DeletionResult] = []
        with self._turn if len(deletions) > 1 else nullcontext():
            while len(results) < len(deletions):
                if not may_send():
                    return results + [DeletionResult.NOT_SENT] * (len(deletions) - len(results))
                packet = _packet(deletions[len(results) :], self._limit.most_in_flight())
                try:
                    results += self._delete_packet(packet)
                except OutcomeUnknownError:
                    return results + [DeletionResult.UNKNOWN] * (len(deletions) - len(results))
                except TemporaryError:
                    if not results:
                        raise
                    return results + [DeletionResult.UNKNOWN] * (len(deletions) - len(results))
        return results

    def _delete_packet(self, packet: Sequence[GuardedDeletion]) -> list[DeletionResult]:
        what = f"delete {format_count(len(packet), 'node')}"
        try:
            with self._limit.sending():
                answer = self._commit(what, [], [{"request_txn": _guarded(each)} for each in packet])
        except RefusedError as error:
            if len(packet) == 1 and "too many operations" in str(error):
                _LOG.warning(
                    "%s is kept: its %d guards do not fit into one transaction; raise etcd's --max-txn-ops",
                    packet[0].path,
                    len(packet[0].guards),
                )
                return [DeletionResult.CONFLICT]
            raise
        answers = operations_of(answer, "response_txn")
        return [_outcome(each, answered) for each, answered in zip(packet, answers, strict=True)]

    def may_delete_below(self, path: str) -> bool:
        """Return True if the user may delete keys below a path: etcd checks this before it compares."""
        never = {"key": encoded(path), "target": "VERSION", "result": "GREATER", "version": str(2**63 - 1)}
        deletion = {"request_delete_range": below(path)}
        try:
            self.gateway.reading(
                f"check the permission to delete below {path}", "kv/txn", {"compare": [never], "success": [deletion]}
            )
        except RefusedError as error:
            if error.not_permitted:
                return False
            raise
        return True

    def now_ms(self) -> int:
        """Return the time as `MetadataStore.now_ms`, twice a minute by a request, which also keeps revisions' times."""
        with self._keeping:
            if self._clock.monotonic_seconds() - self._kept_at >= REFRESH_SECONDS:
                node = self.read(CLOCK_PATH)
                self._keep_times(node)
                self._kept_at = self._clock.monotonic_seconds()
        return self.gateway.times.now_ms()

    def _keep_times(self, node: Node | None) -> None:
        """Add the last mark to the node that keeps them, if its last one is old; other sidecars may do so too."""
        data = self.gateway.times.to_store(b"" if node is None else node.data)
        if data is None:
            return
        try:
            if node is None:
                self.create(CLOCK_PATH, data)
            else:
                self.write(CLOCK_PATH, data, node.version)
        except (ConflictError, NotFoundError, OutcomeUnknownError, TemporaryError) as error:
            _LOG.info("the times of revisions were not kept: %s", error)

    def _transaction(self, what: str, operations: Sequence[Answer]) -> Sequence[Answer]:
        if not operations:
            return []
        answer = self.gateway.reading(what, "kv/txn", {"success": operations})
        return operations_of(answer)

    def _commit(
        self, what: str, compare: Sequence[Answer], success: Sequence[Answer], failure: Sequence[Answer] = ()
    ) -> Answer:
        return self.gateway.writing(what, "kv/txn", {"compare": compare, "success": success, "failure": failure})

    def _node(self, path: str, keys: Sequence[Key]) -> Node | None:
        if not keys:
            return _ROOT if path == "/" else None
        (key,) = keys
        times = self.gateway.times
        return Node(
            path,
            key.data,
            version=NodeVersion(key.version - 1),
            created_ms=times.made_before_ms(key.created),
            modified_ms=times.made_before_ms(key.modified),
            created_order=key.created,
            children_count=None,
            ephemeral=key.lease != 0,
            times_known=False,
            modified_order=key.modified,
        )


class EtcdLedgerIds(SequentialLedgerIds):
    """`SequentialLedgerIds`: Pulsar numbers a sequential node by the version of its parent, which it writes for that.

    The sequential node itself is not needed: no other caller gets the number.
    """

    def __init__(self, store: EtcdMetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        super().__init__(store, ledgers_root)
        self._gateway = store.gateway

    def _number_below(self, folder: str) -> int:
        request = {"key": encoded(folder), "value": "", "prev_kv": True}
        answer = self._gateway.writing(f"take a ledger id below {folder}", "kv/put", request)
        return int(answer.get("prev_kv", {}).get("version", 0))


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _listing(path: str) -> Answer:
    return {**below(path), "keys_only": True, "limit": str(_PAGE_KEYS)}


def _is_absent(path: str) -> Answer:
    return {"key": encoded(path), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}


def _exists_now(path: str) -> Answer:
    return {**_is_absent(path), "result": "GREATER"}


def _is_at(path: str, version: NodeVersion) -> Answer:
    return {"key": encoded(path), "target": "VERSION", "result": "EQUAL", "version": str(version + 1)}


def _is_as_read(node: Guard | GuardedDeletion) -> Answer:
    """Compare the mod revision, where it is known: unlike a version it never occurs again."""
    if node.modified_order is None:
        return _is_at(node.path, node.version)
    return {"key": encoded(node.path), "target": "MOD", "result": "EQUAL", "mod_revision": str(node.modified_order)}


def _has_no_lease(path: str) -> Answer:
    return {"key": encoded(path), "target": "LEASE", "result": "EQUAL", "lease": "0"}


def _has_nothing_below(path: str) -> Answer:
    # Of a range without keys etcd compares zeros, else every key of it.
    return {**_is_absent(path), **below(path)}


def _made_if_absent(path: str) -> Answer:
    put = {"request_put": {"key": encoded(path), "value": ""}}
    return {"request_txn": {"compare": [_is_absent(path)], "success": [put]}}


def _exists(path: str) -> Answer:
    return {"request_range": {"key": encoded(path), "count_only": True}}


def _count(answer: Answer) -> int:
    return int(answer.get("count", 0))


def _deletion(path: str) -> Answer:
    return {"request_delete_range": {"key": encoded(path)}}


def _guarded(deletion: GuardedDeletion) -> Answer:
    """Return the transaction of one deletion; on failure it reads the nodes that show why."""
    guards = [_is_as_read(guard) for guard in deletion.guards]
    read = [{"request_range": {"key": encoded(guard.path), "keys_only": True}} for guard in deletion.guards]
    return {
        "compare": [*guards, _is_as_read(deletion), _has_nothing_below(deletion.path)],
        "success": [_deletion(deletion.path)],
        "failure": [*read, _exists(deletion.path)],
    }


def _outcome(deletion: GuardedDeletion, answer: Answer) -> DeletionResult:
    if answer.get("succeeded"):
        return DeletionResult.DELETED
    *guards, own = operations_of(answer)
    for guard, found in zip(deletion.guards, guards, strict=True):
        versions = [(key.version - 1, key.modified) for key in keys_of(found)]
        if not versions or versions[0] != (guard.version, guard.modified_order or versions[0][1]):
            return DeletionResult.CONFLICT
    return DeletionResult.CONFLICT if _count(own) else DeletionResult.GONE


def _packet(deletions: Sequence[GuardedDeletion], most: int) -> Sequence[GuardedDeletion]:
    """Return the next deletions of one transaction, at least one.

    All are compared before any is carried out, so none is of the same node as another, nor of one above it.
    """
    named: set[str] = set()
    compared = 0
    for count, deletion in enumerate(deletions[: min(most, MOST_OPERATIONS // 2)]):
        compared = max(compared, len(deletion.guards) + 2)
        related = deletion.path in named or any(path.startswith(f"{deletion.path}/") for path in named)
        guarded = any(guard.path in named for guard in deletion.guards)
        if count and (related or guarded or count + 1 + compared > MOST_OPERATIONS):
            return deletions[:count]
        named.add(deletion.path)
    return deletions[: min(most, MOST_OPERATIONS // 2)]
