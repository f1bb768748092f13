"""Progress of each plan: a node in the metadata store, so that every machine and every copy of an audit agrees.

Invariant: the first ``done_rows`` rows were durably sent, whatever happens; some later ones may have been.
"""

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from pulsar_sidecar.features.audit.results.answers import UnfinishedPlan
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import AlreadyExistsError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import MetadataStore

_PLANS: Final = "/pulsar-sidecar/audit-plans"


@decodable
class PlanProgress(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Progress of a plan, as its node holds it, with the time of its writer, which also stamps the messages."""

    audit_id: str
    rows: int
    done_rows: int
    written_ms: int

    @property
    def finished(self) -> bool:
        return self.done_rows >= self.rows


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """Progress with its node's version and last change by the store's clock; ``first_use`` if no row was sent yet."""

    progress: PlanProgress
    version: NodeVersion
    changed_ms: int
    first_use: bool

    def since_ms(self) -> int:
        """Return a time before which no row after `PlanProgress.done_rows` was sent, whichever clock stamped it."""
        return min(self.changed_ms, self.progress.written_ms)


def begin(store: MetadataStore, plan_sha256: str, audit_id: str, rows: int, now_ms: int) -> StoredProgress:
    """Return the plan's progress, begun if there is none; `TemporaryError` if its node is unreadable."""
    path = progress_path(plan_sha256)
    progress = PlanProgress(audit_id, rows, 0, now_ms)
    try:
        node = store.create(path, msgspec.json.encode(progress))
    except AlreadyExistsError:
        existing = progress_of(store, plan_sha256)
        if existing is None:
            raise TemporaryError(f"{path} no longer exists; repeat the command") from None
        return existing
    return StoredProgress(progress, node.version, node.created_ms, first_use=True)


def advance(
    store: MetadataStore, plan_sha256: str, held: StoredProgress, done_rows: int, now_ms: int
) -> StoredProgress:
    """Record the number of rows done; `ConflictError` if another process applies the same plan."""
    progress = msgspec.structs.replace(held.progress, done_rows=done_rows, written_ms=now_ms)
    version = store.write(progress_path(plan_sha256), msgspec.json.encode(progress), held.version)
    return replace(held, progress=progress, version=version, first_use=False)


def progress_of(store: MetadataStore, plan_sha256: str) -> StoredProgress | None:
    """Return a plan's progress, or None if it was never applied; `TemporaryError` if its node cannot be decoded."""
    path = progress_path(plan_sha256)
    node = store.read(path)
    if node is None:
        return None
    try:
        progress = msgspec.json.decode(node.data, type=PlanProgress)
    except msgspec.DecodeError as error:
        raise TemporaryError(
            f"{path} cannot be decoded ({error}); inspect the node, and delete it if it is damaged"
        ) from error
    return StoredProgress(progress, node.version, node.modified_ms, first_use=False)


def unfinished_plans(store: MetadataStore) -> list[UnfinishedPlan]:
    """Return the plans with rows still to be sent; `TemporaryError` if a plan's node cannot be decoded."""
    hashes = sorted(store.children(_PLANS) or [])
    found = [(sha256, progress_of(store, sha256)) for sha256 in hashes]
    return [
        UnfinishedPlan(sha256, held.progress.audit_id, held.progress.rows, held.progress.done_rows, held.changed_ms)
        for sha256, held in found
        if held is not None and not held.progress.finished
    ]


def progress_path(plan_sha256: str) -> str:
    return f"{_PLANS}/{plan_sha256}"
