"""Batching of the store requests and publishes of topic deletions that run at the same time.

Each deletion is written as if it ran alone; this layer sends what waits at the same moment together. All reads share
one multi-read, created or removed nodes one multi, records one publish.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeVar

from pulsar_sidecar.features.ledger_deletion.ports import OutgoingMessage, Publisher, PublishResult
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion, MetadataStore, NewNode, Node, always
from pulsar_sidecar.runtime import GroupedCalls

_MOST_PATHS = 2_000
_MOST_BYTES = 512 * 1024
"""ZooKeeper accepts requests of up to 1 MiB."""
_NODE_OVERHEAD_BYTES = 64
_MOST_MESSAGES = 1_000

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class GroupedStore:
    """`model.metadata.MetadataStore` that batches its callers' reads, creations and removals."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._reads = GroupedCalls[Sequence[str], list[Node | None]](_each_its_part(store.read_many), len, _MOST_PATHS)
        self._lists = GroupedCalls[Sequence[str], list[list[str] | None]](
            _each_its_part(store.children_many), len, _MOST_PATHS
        )
        self._creations = GroupedCalls[Sequence[NewNode], None](_all_or_none(store.create_together), _size, _MOST_BYTES)
        self._removals = GroupedCalls[Sequence[str], None](_all_or_none(store.delete_together), len, _MOST_PATHS)

    def read(self, path: str) -> Node | None:
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        return self._reads(paths) if paths else []

    def children(self, path: str) -> list[str] | None:
        return self.children_many([path])[0]

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        return self._lists(paths) if paths else []

    def create_together(self, nodes: Sequence[NewNode]) -> None:
        self._creations(nodes)

    def delete_together(self, paths: Sequence[str]) -> None:
        self._removals(paths)

    # Rare calls are not batched.

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        return self._store.create(path, data, ephemeral=ephemeral)

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        return self._store.write(path, data, version)

    def delete(
        self, path: str, version: NodeVersion | None = None, modified_order: int | None = None
    ) -> DeletionResult:
        return self._store.delete(path, version, modified_order)

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        return self._store.delete_many(deletions, may_send)

    def now_ms(self) -> int:
        return self._store.now_ms()


class GroupedPublisher:
    """`Publisher.publish` that batches its callers' messages; they must not carry sequence ids."""

    def __init__(self, publisher: Callable[[], Publisher]) -> None:
        self._publishes = GroupedCalls[Sequence[OutgoingMessage], list[PublishResult]](
            _each_its_part(lambda messages: publisher().publish(messages)), len, _MOST_MESSAGES
        )

    def publish(self, messages: Sequence[OutgoingMessage]) -> list[PublishResult]:
        return self._publishes(messages)


def _each_its_part(
    call: Callable[[Sequence[Item]], list[Answer]],
) -> Callable[[Sequence[Sequence[Item]]], list[list[Answer]]]:
    def call_for_all(group: Sequence[Sequence[Item]]) -> list[list[Answer]]:
        answers = iter(call(list(chain.from_iterable(group))))
        return [[next(answers) for _ in items] for items in group]

    return call_for_all


def _all_or_none(change: Callable[[Sequence[Item]], None]) -> Callable[[Sequence[Sequence[Item]]], list[None]]:
    def change_all(group: Sequence[Sequence[Item]]) -> list[None]:
        change(list(chain.from_iterable(group)))
        return [None] * len(group)

    return change_all


def _size(nodes: Sequence[NewNode]) -> int:
    return sum(len(node.path) + len(node.data) + _NODE_OVERHEAD_BYTES for node in nodes)
