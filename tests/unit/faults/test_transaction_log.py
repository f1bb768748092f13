"""The ground truth of fault tests sees everything that it should; the files are written as ZooKeeper writes them."""

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar_sidecar.features.ledger_deletion.control import CONTROL, INSTANCES
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import DELAYED_BUCKET_KEY_PREFIX as BUCKET

from tests.cluster.transaction_log import TransactionLog
from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes

BROKER, SIDECAR, TEST = 1, 2, 3
TOPIC = "/managed-ledgers/public/default/persistent/topic"
ONE, TWO = LedgerId(1), LedgerId(2)
CREATE, DELETE, SET_DATA, MULTI, CREATE_2, CREATE_SESSION = 1, 2, 5, 14, 15, -10


@dataclass(frozen=True, slots=True)
class Written:
    """A cluster of which there is only ZooKeeper's directory."""

    directory: Path

    @property
    def addresses(self) -> ClusterAddresses:
        return ClusterAddresses((), "", "", directory=self.directory)

    def log(self) -> TransactionLog:
        return TransactionLog(self)  # type: ignore[arg-type]  # only its addresses are read


class Files:
    """ZooKeeper's side."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "zookeeper" / "data" / "version-2"
        self._directory.mkdir(parents=True)
        self._zxid = 0
        self.begin()

    def begin(self) -> None:
        """A new file, as after a restart; the one before keeps its zeros."""
        self._file = self._directory / f"log.{self._zxid + 1:x}"
        self._file.write_bytes(b"ZKLG" + bytes(12))
        self._end = 16

    def write(self, session: int, kind: int, body: bytes, *, torn: bool = False) -> None:
        self._zxid += 1
        transaction = struct.pack("!qiqqi", session, 7, self._zxid, 1_000, kind) + body
        record = struct.pack("!qi", 99, len(transaction)) + transaction + b"B"
        whole = self._file.read_bytes()[: self._end] + (record[:-3] if torn else record)
        self._file.write_bytes(whole + bytes(0 if torn else 64))
        self._end = len(whole)

    def put(self, session: int, path: str, data: bytes = b"", kind: int = CREATE) -> None:
        self.write(session, kind, put_body(path, data))

    def delete(self, session: int, path: str) -> None:
        self.write(session, DELETE, text(path))


def text(value: str) -> bytes:
    return buffer(value.encode())


def buffer(value: bytes) -> bytes:
    return struct.pack("!i", len(value)) + value


def put_body(path: str, data: bytes) -> bytes:
    return text(path) + buffer(data) + struct.pack("!i", 0)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Two ledgers that a topic names, and a sidecar."""
    files = Files(tmp_path)
    files.write(SIDECAR, CREATE_SESSION, struct.pack("!i", 4_000))
    files.put(SIDECAR, f"{INSTANCES}/one", kind=CREATE_2)
    for ledger_id in (ONE, TWO):
        files.put(BROKER, ledger_path(ledger_id), b"metadata", CREATE_2)
    files.put(BROKER, TOPIC, managed_ledger_bytes([ONE, TWO]))
    return files


@pytest.fixture
def log(tmp_path: Path) -> TransactionLog:
    return Written(tmp_path).log()


def test_unreferenced_ledger_may_be_deleted(files: Files, log: TransactionLog) -> None:
    files.put(BROKER, TOPIC, managed_ledger_bytes([TWO]), SET_DATA)
    files.put(SIDECAR, f"{LEAKS}/1", b"evidence")
    files.delete(SIDECAR, ledger_path(ONE))
    log.demand_nothing_referenced_was_deleted({ONE})
    assert log.deleted_by_sidecars() == {ONE} == log.evidence.keys()


def test_ledger_referenced_when_deleted_is_reported(files: Files, log: TransactionLog) -> None:
    files.delete(SIDECAR, ledger_path(ONE))
    files.delete(BROKER, TOPIC)
    with pytest.raises(AssertionError, match=r"referenced ledgers were deleted.*ledger_id=1"):
        log.demand_nothing_referenced_was_deleted({ONE})


def test_cleanup_test_is_not_a_suspect(files: Files, log: TransactionLog) -> None:
    files.put(TEST, CONTROL, b"{}")
    files.delete(TEST, CONTROL)
    files.delete(TEST, ledger_path(ONE))
    log.demand_nothing_referenced_was_deleted(())
    assert log.deleted_by_sidecars() == frozenset()


def test_brokers_may_delete_before_they_take_the_reference_away(files: Files, log: TransactionLog) -> None:
    files.delete(BROKER, ledger_path(ONE))
    log.demand_nothing_referenced_was_deleted(())
    with pytest.raises(AssertionError, match="no sidecar has deleted"):
        log.demand_nothing_referenced_was_deleted({ONE})


def test_a_bucket_whose_property_a_broker_left_is_known_by_who_removed_its_ledger(
    files: Files, log: TransactionLog
) -> None:
    one, two, three = (LedgerId(number) for number in (11, 12, 13))
    files.put(BROKER, f"{TOPIC}/subscription", cursor_bytes(14, buckets={f"{BUCKET}_1_1": one, f"{BUCKET}_2_2": two}))
    files.put(BROKER, f"{TOPIC}/other", cursor_bytes(three))
    for ledger_id in (one, two, three):
        files.put(BROKER, ledger_path(ledger_id), b"metadata")
    assert log.left_buckets() == frozenset()
    files.delete(BROKER, ledger_path(one))
    files.delete(SIDECAR, ledger_path(two))
    files.delete(BROKER, ledger_path(three))
    files.delete(BROKER, ledger_path(ONE))
    assert log.left_buckets() == {one}
    files.put(BROKER, f"{TOPIC}/subscription", cursor_bytes(14), SET_DATA)
    assert log.left_buckets() == frozenset()


def test_bucket_with_another_reference_is_not_left_over(files: Files, log: TransactionLog) -> None:
    files.put(BROKER, f"{TOPIC}/subscription", cursor_bytes(buckets={f"{BUCKET}_1_1": ONE}))
    files.delete(BROKER, ledger_path(ONE))
    assert log.left_buckets() == frozenset()


def test_possible_managed_ledger_is_not_a_bucket(files: Files, log: TransactionLog) -> None:
    files.put(BROKER, "/managed-ledgers/public/default/persistent/persistent/x", managed_ledger_bytes([ONE]))
    files.delete(BROKER, TOPIC)
    files.delete(BROKER, ledger_path(ONE))
    assert log.left_buckets() == frozenset()


def test_a_restart_a_torn_end_and_changes_together(files: Files, log: TransactionLog) -> None:
    log.read_on()
    files.write(BROKER, CREATE, put_body("/x", b""), torn=True)
    log.read_on()
    seen = log.changes
    files.begin()
    inner = [(SET_DATA, put_body(TOPIC, managed_ledger_bytes([ONE]))), (DELETE, text(ledger_path(TWO)))]
    bodies = b"".join(struct.pack("!i", kind) + buffer(body) for kind, body in inner)
    files.write(SIDECAR, MULTI, struct.pack("!i", len(inner)) + bodies)
    log.demand_nothing_referenced_was_deleted({TWO})
    assert log.changes == seen + len(inner)
