"""Concurrent writes to the sidecars' own nodes in the metadata store."""

from collections.abc import Callable
from typing import TypeVar

from pulsar_sidecar.model.errors import AlreadyExistsError, ConflictError, NotFoundError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore

T = TypeVar("T")

_CHANGE_TRIES = 10


def change_node(
    store: MetadataStore,
    path: str,
    decode: Callable[[bytes | None], T],
    change: Callable[[T], T],
    encode: Callable[[T], bytes],
) -> T:
    """Change a node's content by compare-and-set and return the new content.

    ``decode`` gets None where there is no node. If ``change`` changes nothing, nothing is written.

    Raises:
        TemporaryError: other sidecars keep changing it.
    """
    for _ in range(_CHANGE_TRIES):
        node = store.read(path)
        before = decode(None if node is None else node.data)
        changed = change(before)
        try:
            if node is None:
                store.create(path, encode(changed))
            elif changed != before:
                store.write(path, encode(changed), node.version)
        except (ConflictError, NotFoundError):
            continue
        return changed
    raise TemporaryError(f"other sidecars keep changing {path}; try again")


def put_node(store: MetadataStore, path: str, data: bytes) -> None:
    """Create a node, or overwrite the existing one.

    Raises:
        TemporaryError: another client changed it at the same moment.
    """
    try:
        store.create(path, data)
    except AlreadyExistsError as error:
        node = store.read(path)
        if node is None:
            raise TemporaryError(f"another client changed {path} at the same moment; try again") from error
        store.write(path, data, node.version)
