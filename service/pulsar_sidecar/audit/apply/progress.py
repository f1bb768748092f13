"""How far a plan was applied: a node in the metadata store, so that every machine and every copy of an audit agrees.

Invariant: ``done_rows`` rows from the beginning were durably sent, whatever happens; of later ones some may have been.
"""

import json
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from pulsar_sidecar.model.errors import AlreadyExistsError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import MetadataStore

PLANS: Final = "/pulsar-sidecar/audit-plans"


class Progress(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
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
class HeldProgress:
    """The progress with the node's version and time of its last change.

    Attributes:
        first_use: nobody has sent anything of this plan yet.
        changed_ms: by the store's clock.
    """

    progress: Progress
    version: NodeVersion
    changed_ms: int
    first_use: bool

    def since_ms(self) -> int:
        """No row that `Progress.done_rows` leaves open was sent before this moment, whichever clock stamped it."""
        return min(self.changed_ms, self.progress.written_ms)


def begin(store: MetadataStore, plan_sha256: str, audit_id: str, rows: int, now_ms: int) -> HeldProgress:
    """The plan's progress; a plan that nobody has begun is begun.

    Raises:
        TemporaryError: the node cannot be read or understood.
    """
    path = progress_path(plan_sha256)
    progress = Progress(audit_id, rows, 0, now_ms)
    try:
        node = store.create(path, _encoded(progress))
    except AlreadyExistsError:
        return _existing(store, path)
    return HeldProgress(progress, node.version, node.created_ms, first_use=True)


def advance(store: MetadataStore, plan_sha256: str, held: HeldProgress, done_rows: int, now_ms: int) -> HeldProgress:
    """Note that so many rows are done.

    Raises:
        ConflictError: somebody else applies the same plan.
    """
    progress = msgspec.structs.replace(held.progress, done_rows=done_rows, written_ms=now_ms)
    version = store.write(progress_path(plan_sha256), _encoded(progress), held.version)
    return replace(held, progress=progress, version=version, first_use=False)


def progress_path(plan_sha256: str) -> str:
    """Where the progress of this plan is."""
    return f"{PLANS}/{plan_sha256}"


def _existing(store: MetadataStore, path: str) -> HeldProgress:
    node = store.read(path)
    if node is None:
        raise TemporaryError(f"{path} has vanished; try again")
    try:
        progress = msgspec.json.decode(node.data, type=Progress)
    except msgspec.DecodeError as error:
        raise TemporaryError(
            f"{path} cannot be understood ({error}); look at it, and delete it if it is nonsense"
        ) from error
    return HeldProgress(progress, node.version, node.modified_ms, first_use=False)


def _encoded(progress: Progress) -> bytes:
    return json.dumps(msgspec.to_builtins(progress)).encode()
