"""Sidecars that watch a `FakePulsar`, driven second by second: a loop continues only while its test lets time pass."""

import threading
from dataclasses import dataclass, field, replace
from typing import Self

from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Publisher
from pulsar_sidecar.features.ledger_deletion.record import SIGNING_KEY, PendingDeleteLedgerInfo, is_signed
from pulsar_sidecar.features.ledger_deletion.results import SidecarInstance
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import DeletionPolicy
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.features.ledger_deletion.second_phase.only_copies import OnlyCopies
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.watch.assess import Assessor
from pulsar_sidecar.features.ledger_deletion.watch.control import WatchControlNode, find_leader
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS, LeakStore
from pulsar_sidecar.features.ledger_deletion.watch.results import Leak, LeakState, WatchMode, WatchStatus
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import WatchConfiguration, WatchPorts
from pulsar_sidecar.features.ledger_deletion.workflow.watching import LeakWatch
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName

from tests.fakes.offload import PARTS
from tests.fakes.pulsar import FakePulsar
from tests.fakes.watched_store import FakeStoreChanges, FakeWholeStore
from tests.unit.ledger_deletion.sidecars import POLICY, Crash, CrashAt, Sidecar, accepted_records, check

MINUTE = 60.0
APPEND = WatchConfiguration(
    mode=WatchMode.APPEND, unlinked_min_age_ms=round(72_000 * MINUTE), unlinked_window_ms=round(12_000 * MINUTE)
)
"""The defaults, but for minutes where those have hours."""
QUICK = replace(APPEND, unlinked_min_age_ms=round(12_000 * MINUTE), unlinked_window_ms=round(2_000 * MINUTE))
"""The same with a sixth of the times of ledgers that were never linked."""
SETTLE_SECONDS = APPEND.settle_ms / 1000
SOON = 8.0
"""By then what leaked is written down."""
A_WHILE = 10 * MINUTE


_TURN_SECONDS = 60


class SteppedClock:
    """The fake Pulsar's clock for one loop, which waits for its test whenever the time that it was given is over."""

    def __init__(self, fake_pulsar: FakePulsar) -> None:
        self._fake_pulsar = fake_pulsar
        self._until_ms = 0
        self._may_run = threading.Semaphore(0)
        self._rests = threading.Semaphore(0)
        self.killed = False
        self.ended = False

    def now_ms(self) -> int:
        return self._fake_pulsar.clock.now_ms()

    def monotonic_seconds(self) -> float:
        return self._fake_pulsar.clock.monotonic_seconds()

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        end_ms = self.now_ms() + round(1000 * seconds)
        while True:
            if stop is not None and stop.is_set():
                return True
            left_ms = min(end_ms, self._until_ms) - self.now_ms()
            if left_ms > 0:
                self._fake_pulsar.clock.advance_ms(left_ms)
            if self.now_ms() >= end_ms:
                return False
            self.rest()

    def rest(self) -> None:
        """Let the test continue, from the loop's thread."""
        self._rests.release()
        _demand(self._may_run)
        if self.killed:
            raise Crash

    def let(self, seconds: float) -> None:
        """Let the loop run for so long, from the test's thread."""
        self._until_ms = self.now_ms() + round(1000 * seconds)
        self._may_run.release()
        _demand(self._rests)

    def begin(self) -> None:
        """First thing in the loop's thread."""
        _demand(self._may_run)
        if self.killed:
            raise Crash

    def end(self) -> None:
        """Last thing in the loop's thread, which is alive a moment longer."""
        self.ended = True
        self._rests.release()


def _demand(turn: threading.Semaphore) -> None:
    assert turn.acquire(timeout=_TURN_SECONDS), "the loop and its test wait for each other"


@dataclass
class Watcher:
    """One sidecar's watch; nothing happens in it but in `go`.

    Attributes:
        recorded: topics whose deletion the sidecars have recorded.
        offload_error: what asking tiered storage raises.
        is_yielding: a deletion waits for another reading of the store.
        died_of: what ended the loop.
    """

    fake_pulsar: FakePulsar
    configuration: WatchConfiguration = APPEND
    name: str = "one"
    steps: Steps = field(default_factory=Steps)
    policy: DeletionPolicy = POLICY
    recorded: set[TopicName] = field(default_factory=set)
    offload_error: SidecarError | None = None
    is_yielding: bool = False
    died_of: BaseException | None = None

    def __post_init__(self) -> None:
        fake_pulsar = self.fake_pulsar
        self.store = fake_pulsar.store.other_session()
        self.clock = SteppedClock(fake_pulsar)
        self.changes = FakeStoreChanges(self.store, self.clock)
        self.whole = FakeWholeStore(self.store)
        self.leaks = LeakStore(self.store, self.steps)
        self.orders = WatchControlNode(self.store)
        gatherer = Gatherer(
            self.store,
            fake_pulsar.entries,
            fake_pulsar.owners,
            OnlyCopies(self._offloaded_whole, self.clock),
            "/ledgers",
        )
        assessor = Assessor(self.store, gatherer, self.policy, self.leaks, "/ledgers")
        ports = WatchPorts(
            self.clock,
            self.store,
            self.changes,
            self.whole,
            assessor,
            self._publisher,
            lambda: frozenset(self.recorded),
            fake_pulsar.offloaded.exists,
            lambda: self.is_yielding,
        )
        instance = SidecarInstance(self.name, f"http://{self.name}:8080", None, 1)
        self.watch = LeakWatch(self.configuration, ports, instance, self.steps)
        self._own_publisher: Publisher | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    # --- driving -------------------------------------------------------------------------------------------------

    def go(self, seconds: float) -> Self:
        """Let the loop run for so long; an error that ends it is raised here, a crash is not."""
        if not self.clock.ended:
            self.clock.let(seconds)
        if self.died_of is not None and not isinstance(self.died_of, Crash):
            raise self.died_of
        return self

    def stop(self) -> None:
        """Let it end in good order."""
        self._stop.set()
        self.go(1)
        self._thread.join(10)

    def die(self) -> None:
        """The process is killed, and its session ends."""
        self.clock.killed = True
        if not self.clock.ended:
            self.store.before("delete", self._killed, times=-1)
            self.clock.let(0)
            self._thread.join(10)
        self.store.end_session()
        if self._own_publisher is not None:
            self._own_publisher.close()

    def _killed(self) -> None:
        raise Crash

    def _run(self) -> None:
        try:
            self.clock.begin()
            self.watch.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it
            self.died_of = error
        finally:
            self.clock.end()

    # --- its ports -----------------------------------------------------------------------------------------------

    def _publisher(self) -> Publisher:
        if self._own_publisher is None:
            self._own_publisher = self.fake_pulsar.topics.publisher(DeletionTopic.PENDING, f"{self.name}-watch")
        return self._own_publisher

    def _offloaded_whole(self, ledger_id: LedgerId, context: OffloadContext, managed_ledger: ManagedLedgerName) -> bool:
        if self.offload_error is not None:
            raise self.offload_error
        return self.fake_pulsar.offloaded.parts(ledger_id, context) == PARTS

    # --- what it shows -------------------------------------------------------------------------------------------

    def status(self) -> WatchStatus:
        control = self.orders.read()
        return replace(
            self.watch.readings(), leader=find_leader(self.store), braked=control.braked, holds=control.holds
        )

    def leak(self, ledger_id: LedgerId) -> Leak | None:
        """The newest that is known of a ledger, ended or not."""
        found = [leak for leak in self.watch.leaks(ended=True) if leak.ledger_id == ledger_id]
        return found[-1] if found else None

    def state(self, ledger_id: LedgerId) -> LeakState | None:
        leak = self.leak(ledger_id)
        return None if leak is None else leak.state

    def detail(self, ledger_id: LedgerId) -> str:
        leak = self.leak(ledger_id)
        return "" if leak is None else leak.detail


class CrashAround(CrashAt):
    """Kills the process before or after the given occurrence of a step."""

    def __init__(self, step: Step, *, before: bool, occurrence: int) -> None:
        super().__init__()
        self._wanted = (step, before)
        self._left = occurrence

    def about_to(self, step: Step) -> None:
        self._around(step, before=True)

    def reached(self, step: Step) -> None:
        self._around(step, before=False)

    def _around(self, step: Step, *, before: bool) -> None:
        if (step, before) == self._wanted:
            self._left -= 1
            if self._left == 0:
                raise Crash(step)


def made(configuration: WatchConfiguration = APPEND, **changes: object) -> WatchConfiguration:
    """The same configuration with other settings."""
    return replace(configuration, **changes)


def appended(fake_pulsar: FakePulsar) -> list[LedgerId]:
    """Every ledger whose record was ever appended, in order."""
    return sorted(record.ledger_id for record in accepted_records(fake_pulsar))


def appended_record(fake_pulsar: FakePulsar, ledger_id: LedgerId) -> PendingDeleteLedgerInfo:
    (found,) = (record for record in accepted_records(fake_pulsar) if record.ledger_id == ledger_id)
    return found


def has_signature(fake_pulsar: FakePulsar, record: PendingDeleteLedgerInfo) -> bool:
    key = fake_pulsar.store.peek(SIGNING_KEY)
    return is_signed(record, None if key is None else key.data)


def kept(fake_pulsar: FakePulsar) -> list[LedgerId]:
    """The ledgers about which evidence is written down."""
    return sorted(LedgerId(int(name)) for name in kept_keys(fake_pulsar))


def kept_keys(fake_pulsar: FakePulsar) -> list[str]:
    """The same, copies in tiered storage as well, as `record.copy_key` names them."""
    paths = fake_pulsar.store.paths()
    return sorted(path.removeprefix(f"{LEAKS}/") for path in paths if path.startswith(f"{LEAKS}/"))


def run_second_phase(fake_pulsar: FakePulsar, policy: DeletionPolicy = POLICY) -> None:
    """The second phase works off what was appended, and nothing referenced went."""
    Sidecar(fake_pulsar, name="second-phase", policy=policy).work()
    check(fake_pulsar)
    fake_pulsar.topics.drop_connections()


def with_policies(fake_pulsar: FakePulsar, *namespaces: str) -> FakePulsar:
    for namespace in namespaces or ("public/default",):
        fake_pulsar.store.put(f"/admin/policies/{namespace}", b"{}")
    return fake_pulsar
