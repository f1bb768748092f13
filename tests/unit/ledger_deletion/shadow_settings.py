"""A shadow topic to delete, its source, and sidecars that take one stage after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pulsar_sidecar.features.ledger_deletion.results import ShadowDeletionStage, ShadowDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_deleter import ShadowDeleter
from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path, partitioned_topic_path

from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.shadow_brokers import ShadowBrokers
from tests.unit.ledger_deletion.faults import Wrapped
from tests.unit.ledger_deletion.sidecars import Crash

SOURCE = "persistent://public/default/orders"
SHADOW = "persistent://public/default/orders-shadow"
_MOST_CALLS = 100


class Interruption(Enum):
    """Event around one call of a port."""

    KILLED_BEFORE = "the sidecar is killed before the call"
    KILLED_AFTER = "the sidecar is killed after it"
    REFUSED = "the call fails"
    LOST = "its answer is lost, and it did not take effect"
    LOST_APPLIED = "its answer is lost, and it took effect"


@dataclass(slots=True)
class Calls:
    """Counts the ports' calls; ``interruption`` meets call number ``at``, and ``meanwhile`` runs before each."""

    at: int | None = None
    interruption: Interruption = Interruption.REFUSED
    meanwhile: Callable[[], object] = lambda: None
    seen: list[str] = field(default_factory=list)

    def wrap(self, port: object) -> Wrapped:
        return Wrapped(port, self._around)

    def _around(self, name: str, call: Callable[[], object], _arguments: Sequence[object]) -> object:
        self.meanwhile()
        self.seen.append(name)
        if len(self.seen) - 1 != self.at:
            return call()
        if self.interruption in (Interruption.KILLED_AFTER, Interruption.LOST_APPLIED):
            call()
        match self.interruption:
            case Interruption.KILLED_BEFORE | Interruption.KILLED_AFTER:
                raise Crash(name)
            case Interruption.REFUSED:
                raise TemporaryError(f"{name} was refused")
            case _:
                raise OutcomeUnknownError(f"the answer to {name} was lost")


@dataclass(slots=True)
class Setting:
    """The cluster, and the shadow that is to go."""

    store: FakeMetadataStore
    brokers: ShadowBrokers
    source: TopicName
    shadow: TopicName
    partitions: int | None
    operations: int = 0

    @property
    def shadows(self) -> list[TopicName]:
        if self.partitions is None:
            return [self.shadow]
        return [self.shadow.partition(index) for index in range(self.partitions)]

    def sidecar(self, calls: Calls | None = None) -> ShadowDeleter:
        """A sidecar's process, with a session of its own."""
        wrapping = calls or Calls()
        store, brokers = wrapping.wrap(self.store.other_session()), wrapping.wrap(self.brokers)
        return ShadowDeleter(store, brokers, brokers, "/ledgers")

    def advance(self, sidecar: ShadowDeleter) -> ShadowDeletionStatus:
        self.operations += 1
        return sidecar.advance(OperationId(f"op-{self.operations}"), self.shadow, requested_by="me")

    def delete(self, sidecar: ShadowDeleter | None = None) -> ShadowDeletionStatus:
        """Call like the command until the deletion is done; wait out transient errors."""
        sidecar = sidecar or self.sidecar()
        for _ in range(_MOST_CALLS):
            try:
                status = self.advance(sidecar)
            except (TemporaryError, OutcomeUnknownError):
                continue
            if status.stage is ShadowDeletionStage.DONE:
                return status
        raise AssertionError(f"never done: {status}")

    def finish(self, sidecar: ShadowDeleter | None = None) -> ShadowDeletionStatus:
        status = self.delete(sidecar)
        self.check()
        return status

    def advance_to(self, stage: ShadowDeletionStage) -> None:
        sidecar = self.sidecar()
        while self.advance(sidecar).stage is not stage:
            pass

    def check(self) -> None:
        """The shadow is gone, and the source has lost nothing."""
        assert self.brokers.destroyed == set()
        assert self.store.peek(partitioned_topic_path(self.shadow)) is None
        for shadow in self.shadows:
            assert self.store.peek(managed_ledger_path(shadow.managed_ledger_name)) is None
        for source in [self.source] if self.partitions is None else self.source_partitions:
            listed = self.brokers.listed(source)
            assert listed
            assert all(self.store.peek(ledger_path(ledger_id)) is not None for ledger_id in listed)

    @property
    def source_partitions(self) -> list[TopicName]:
        return [self.source.partition(index) for index in range(self.partitions or 0)]


def setting(partitions: int | None = None, *, listed: bool = False) -> Setting:
    """A shadow, with partitions or without; ``listed``: brokers replicate its source to it."""
    store = FakeMetadataStore()
    brokers = ShadowBrokers(store)
    if partitions is None:
        source = brokers.source(SOURCE)
    else:
        source = brokers.source(f"{SOURCE}-partition-0").base
        for index in range(1, partitions):
            brokers.source(f"{SOURCE}-partition-{index}")
        store.put(partitioned_topic_path(source), b'{"partitions":%d,"deleted":false}' % partitions)
    shadow = brokers.shadow(SHADOW, source, partitions=partitions)
    made = Setting(store, brokers, source, shadow, partitions)
    if listed:
        brokers.lists[source] = [str(shadow), "persistent://public/default/other-shadow"]
        sources = made.source_partitions or [source]
        brokers.replicating = dict(zip(made.shadows, sources, strict=True))
        brokers.kept_forever.add(shadow)
        brokers.replicate()
    return made


def is_refused(setting: Setting) -> str:
    """Return the reason of a refused call; nothing has changed then."""
    before = {path: setting.store.peek(path) for path in setting.store.paths()}
    try:
        setting.advance(setting.sidecar())
    except SidecarError as error:
        assert {path: setting.store.peek(path) for path in setting.store.paths()} == before
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it was not refused")
