"""The progress of each plan: a node in the metadata store, so that every machine and every copy of an audit agrees.

Invariant: ``done_rows`` rows from the beginning were durably sent, whatever happens; of later ones some may have been.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import AlreadyExistsError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import MetadataStore, Node

_PLANS: Final = "/pulsar-sidecar/audit-plans"


@decodable
class PlanProgress(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What the node holds.

    Attributes:
        written_ms: by the clock of the machine that wrote it, which also stamps the messages it sends.
    """

    audit_id: str
    rows: int
    done_rows: int
    written_ms: int

    @property
    def finished(self) -> bool:
        return self.done_rows >= self.rows


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """The progress with the node's version and time of its last change.

    Attributes:
        first_use: no row of this plan was sent yet.
        changed_ms: by the store's clock.
    """

    progress: PlanProgress
    version: NodeVersion
    changed_ms: int
    first_use: bool

    def since_ms(self) -> int:
        """No row that `PlanProgress.done_rows` leaves open was sent before this moment, whichever clock stamped it."""
        return min(self.changed_ms, self.progress.written_ms)


def begin(store: MetadataStore, plan_sha256: str, audit_id: str, rows: int, now_ms: int) -> StoredProgress:
    """The plan's progress, begun if there is none; `TemporaryError` if its node cannot be read or understood."""
    path = progress_path(plan_sha256)
    progress = PlanProgress(audit_id, rows, 0, now_ms)
    try:
        node = store.create(path, msgspec.json.encode(progress))
    except AlreadyExistsError:
        return _existing(store, path)
    return StoredProgress(progress, node.version, node.created_ms, first_use=True)


def advance(
    store: MetadataStore, plan_sha256: str, held: StoredProgress, done_rows: int, now_ms: int
) -> StoredProgress:
    """Note that so many rows are done; `ConflictError` if another process applies the same plan."""
    progress = msgspec.structs.replace(held.progress, done_rows=done_rows, written_ms=now_ms)
    version = store.write(progress_path(plan_sha256), msgspec.json.encode(progress), held.version)
    return replace(held, progress=progress, version=version, first_use=False)


def progress_of(store: MetadataStore, plan_sha256: str) -> StoredProgress | None:
    """How far a plan was applied; None if it never was. `TemporaryError` if its node cannot be understood."""
    path = progress_path(plan_sha256)
    node = store.read(path)
    return None if node is None else _understood(node, path)


def unfinished_plans(store: MetadataStore) -> Mapping[str, StoredProgress]:
    """Return the plans of which rows are still to be sent, by their hashes.

    Raises:
        TemporaryError: a plan's node cannot be decoded.
    """
    hashes = sorted(store.children(_PLANS) or [])
    found = {sha256: progress_of(store, sha256) for sha256 in hashes}
    return {sha256: stored for sha256, stored in found.items() if stored is not None and not stored.progress.finished}


def progress_path(plan_sha256: str) -> str:
    """Where the progress of this plan is."""
    return f"{_PLANS}/{plan_sha256}"


def _existing(store: MetadataStore, path: str) -> StoredProgress:
    node = store.read(path)
    if node is None:
        raise TemporaryError(f"{path} no longer exists; repeat the command")
    return _understood(node, path)


def _understood(node: Node, path: str) -> StoredProgress:
    try:
        progress = msgspec.json.decode(node.data, type=PlanProgress)
    except msgspec.DecodeError as error:
        raise TemporaryError(
            f"{path} cannot be decoded ({error}); inspect the node, and delete it if it is damaged"
        ) from error
    return StoredProgress(progress, node.version, node.modified_ms, first_use=False)
