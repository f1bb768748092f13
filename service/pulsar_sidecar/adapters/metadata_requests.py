"""Checks of requests to the metadata store, the same for each driver: what one store refuses, no store is sent.

Invariant: no driver sends a request that would break the connection all callers share (a path that cannot be encoded, a
request over ZooKeeper's ``jute.maxbuffer``), to which ZooKeeper would return a misleading "no node" (a malformed
path), or that it would take as unconditional (version -1).
"""

import re
from collections.abc import Iterable

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import GuardedDeletion
from pulsar_sidecar.reports.formatting import format_count

_MAX_PATH_BYTES = 32 * 1024
_MAX_REQUEST_BYTES = 10_485_760
"""``jute.maxbuffer`` as Pulsar's own scripts set it; a larger request makes the server drop the connection."""
_REQUEST_OVERHEAD_BYTES = 1024
_ANY_VERSION = -1
# The characters that org.apache.zookeeper.common.PathUtils refuses.
_REFUSED_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")
_REFUSED_PARTS = re.compile(r"//|/\.{1,2}(/|$)|/$")


def check_path(path: str) -> None:
    """Refuse a path that ZooKeeper does not accept for a node.

    Raises:
        InvalidInputError: not absolute, an empty or relative part, a control character, or too long.
    """
    if path == "/":
        return
    if not path.startswith("/") or _REFUSED_PARTS.search(path) or _REFUSED_CHARACTERS.search(path):
        raise InvalidInputError(f"{path[:100]!r} is not a path of the metadata store")
    if len(path.encode()) > _MAX_PATH_BYTES:
        raise InvalidInputError(f"{path[:100]!r}... is longer than {_MAX_PATH_BYTES} bytes; no such node can exist")


def check_version(version: NodeVersion) -> None:
    """Refuse versions that no node has; above all -1, which ZooKeeper reads as any version."""
    if version == _ANY_VERSION or not -(2**31) <= version < 2**31:
        raise InvalidInputError(f"{version} is not a version that a node can have; read the node and use its version")


def check_data(path: str, data: bytes) -> None:
    """Refuse a node that does not fit into one request."""
    check_path(path)
    if len(data) + len(path.encode()) + _REQUEST_OVERHEAD_BYTES > _MAX_REQUEST_BYTES:
        raise InvalidInputError(
            f"{format_count(len(data), 'byte')} for {path} are more than ZooKeeper accepts in one request (10 MB)"
        )


def check_removable(path: str, version: NodeVersion | None = None) -> None:
    """Refuse a path whose node must not be deleted; apply `check_version` to a version."""
    check_path(path)
    if path == "/":
        raise InvalidInputError("the root of the metadata store cannot be deleted")
    if version is not None:
        check_version(version)


def check_deletions(deletions: Iterable[GuardedDeletion]) -> None:
    """Apply `check_path` and `check_version` to the nodes and the guards of every deletion."""
    for deletion in deletions:
        check_removable(deletion.path, deletion.version)
        for guard in deletion.guards:
            check_path(guard.path)
            check_version(guard.version)
