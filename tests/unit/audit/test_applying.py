"""Applying a plan: exactly the approved rows, each once, wherever it was stopped."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pulsar_sidecar.adapters.parquet.directories import open_audit
from pulsar_sidecar.adapters.parquet.inputs import AuditTables
from pulsar_sidecar.adapters.pulsar_topics.pending_deletions import PendingDeletionSender, producer_name
from pulsar_sidecar.features.audit.applying import SentRows, demand_approval, demand_target, send_plan, verified_plan
from pulsar_sidecar.features.audit.plan_progress import begin, progress_path, unfinished_plans
from pulsar_sidecar.features.audit.results.plans import PLAN_COLUMNS
from pulsar_sidecar.features.audit.results.summaries import GuardResult
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import parse_record
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ledgers import LedgerComponent

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.audit.findings import AUDIT_ID, DAY_MS, INSTANCE_ID, STORE_TIME_MS, orphan, orphan_table, summary
from tests.unit.audit.written import write_audit

_ROWS = [orphan(number, standing="too-young" if number % 9 == 4 else "condemned") for number in range(0, 60, 2)]
_DELETABLE = [row["ledger_id"] for row in _ROWS if row["standing"] == "condemned"]


class KilledError(BaseException):
    """The process is gone: nothing handles this."""


class Cluster:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.clock = FakeClock()
        self.topics = FakeDeletionTopics(self.clock)
        self.store = FakeMetadataStore()
        self.summary = summary(rows)
        table = orphan_table(rows)
        deletable = table.filter(pc.equal(table["standing"], "condemned")).select(list(PLAN_COLUMNS))
        self._batches = deletable.combine_chunks().to_batches(max_chunksize=7)
        self.reported: list[tuple[int, int]] = []
        self.paced: list[int] = []

    def apply(self, at_once: int = 4, report: Callable[[int, int], None] | None = None) -> SentRows:
        def batches() -> Iterable[pa.RecordBatch]:
            return self._batches

        plan = verified_plan(self.summary, batches)
        held = begin(self.store, plan.sha256, AUDIT_ID, plan.rows, self.clock.now_ms())
        publisher = self.topics.publisher(DeletionTopic.PENDING, producer_name(plan.sha256), first_use=held.first_use)
        try:
            send = PendingDeletionSender(publisher, self.clock, INSTANCE_ID, f"audit {AUDIT_ID}").send
            telling = report or (lambda done, total: self.reported.append((done, total)))
            return send_plan(plan, held, batches, self.store, send, self.clock, self.paced.append, at_once, telling)
        finally:
            publisher.close()

    def sent_ledgers(self) -> Counter[int]:
        return Counter(
            parse_record(message.payload).ledger_id for message in self.topics.messages(DeletionTopic.PENDING)
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(_ROWS)


def test_every_deletable_ledger_is_sent_once_and_nothing_else(cluster: Cluster) -> None:
    assert cluster.apply() == SentRows(now=len(_DELETABLE))
    assert cluster.sent_ledgers() == Counter(_DELETABLE)
    assert cluster.reported[-1] == (len(_DELETABLE), len(_DELETABLE))
    assert sum(cluster.paced) == len(_DELETABLE)
    assert max(cluster.paced) == 4
    assert cluster.apply() == SentRows(earlier=len(_DELETABLE))
    assert cluster.sent_ledgers() == Counter(_DELETABLE)


def test_a_record_holds_what_the_deletion_service_checks() -> None:
    rows = [
        orphan(1),
        orphan(2, kind="cursor", cursor_name="sub"),
        orphan(3, kind="schema", schema_id="public/default/orders"),
        orphan(4, kind="compacted", ctime_ms=None, length_bytes=None),
        orphan(5, kind="delayed-index-bucket", cursor_name="sub"),
        orphan(6, topic="persistent://pulsar/system/__ledger_deletion-partition-0"),
    ]
    cluster = Cluster(rows)
    cluster.apply()
    messages = cluster.topics.messages(DeletionTopic.PENDING)
    records = {record.ledger_id: record for record in (parse_record(message.payload) for message in messages)}
    assert [records[number].component for number in sorted(records)] == [
        LedgerComponent.MANAGED_LEDGER,
        LedgerComponent.MANAGED_CURSOR,
        LedgerComponent.SCHEMA_STORAGE,
        LedgerComponent.COMPACTED_LEDGER,
        LedgerComponent.DELAYED_INDEX_BUCKET,
        LedgerComponent.MANAGED_LEDGER,
    ]
    assert [str(records[number].topic) for number in (1, 6)] == [rows[0]["topic"], rows[5]["topic"]]
    assert (records[2].cursor_name, records[3].schema_id) == ("sub", "public/default/orders")
    mark = records[1].mark
    assert (mark.unreferenced, mark.instance_id, mark.requested_by) == (True, INSTANCE_ID, f"audit {AUDIT_ID}")
    assert (mark.created_ms, mark.length_bytes) == (rows[0]["ctime_ms"], 1001)
    assert (records[4].mark.created_ms, records[4].mark.length_bytes) == (None, None)


class _Killer:
    """Kills at the chosen step of a run."""

    def __init__(self) -> None:
        self.steps_left: int | None = None

    def step(self) -> None:
        if self.steps_left is None:
            return
        if self.steps_left == 0:
            raise KilledError
        self.steps_left -= 1


@settings(max_examples=settings().max_examples if settings.get_current_profile_name() == "thorough" else 40)
@given(kills=st.lists(st.integers(0, 25), max_size=4), at_once=st.integers(1, 9))
def test_killed_and_started_again_anywhere_each_row_is_sent_once(kills: list[int], at_once: int) -> None:
    cluster = Cluster(_ROWS)
    killer = _Killer()
    cluster.store.before("write", killer.step, times=-1)
    cluster.store.before("create", killer.step, times=-1)
    cluster.topics.hooks.before("publish", killer.step, times=-1)
    for killer.steps_left in kills:
        with suppress(KilledError):
            cluster.apply(at_once, report=lambda done, total: killer.step())
    killer.steps_left = None
    cluster.apply(at_once)
    assert cluster.sent_ledgers() == Counter(_DELETABLE)


def test_lost_receipts_are_asked_for_again(cluster: Cluster) -> None:
    cluster.topics.lose_receipts_next(stored=True, times=2)
    assert cluster.apply() == SentRows(now=len(_DELETABLE) - 4, earlier=4)
    assert cluster.sent_ledgers() == Counter(_DELETABLE)


def test_concurrent_applications_conflict(cluster: Cluster) -> None:
    def interfere(done: int, total: int) -> None:
        node = cluster.store.read(path)
        assert node is not None
        cluster.store.write(path, node.data, node.version)

    assert cluster.summary.plan is not None
    path = progress_path(cluster.summary.plan.sha256)
    with pytest.raises(ConflictError):
        cluster.apply(report=interfere)


def test_progress_that_cannot_be_understood_stops_everything(cluster: Cluster) -> None:
    assert cluster.summary.plan is not None
    cluster.store.put(progress_path(cluster.summary.plan.sha256), b"{}")
    with pytest.raises(TemporaryError, match="cannot be decoded"):
        cluster.apply()
    assert not cluster.sent_ledgers()


def test_a_plan_that_was_sent_in_part_is_unfinished(cluster: Cluster) -> None:
    assert cluster.summary.plan is not None
    assert unfinished_plans(cluster.store) == []
    cluster.topics.lose_receipts_next(stored=False, times=8)
    with pytest.raises(TemporaryError, match="run the same command again"):
        cluster.apply()
    assert [plan.plan_sha256 for plan in unfinished_plans(cluster.store)] == [cluster.summary.plan.sha256]
    assert cluster.apply() == SentRows(now=len(_DELETABLE))
    assert unfinished_plans(cluster.store) == []


def test_a_plan_is_read_back_from_many_files_as_it_was_hashed(tmp_path: Path) -> None:
    written = write_audit(tmp_path, _ROWS, rows_per_file=7)
    assert _verify(tmp_path) == written.plan


# --- refusals ------------------------------------------------------------------------------------------------------


def _verify(directory: Path, **changed: Any) -> Any:
    opened = replace(open_audit(directory), **changed)
    return verified_plan(opened, lambda: AuditTables(directory, opened).deletable())


def test_an_audit_that_a_guard_withheld_is_refused(tmp_path: Path) -> None:
    write_audit(tmp_path, _ROWS)
    failed = GuardResult("share", False, "40 %", "5 %", "too many at once")
    for changed in ({"plan": None}, {"plan": None, "guards": (failed,)}, {"guards": (failed,)}):
        with pytest.raises(ConflictError, match="because a guard failed"):
            _verify(tmp_path, **changed)


def test_rows_that_are_not_the_plans_are_refused(tmp_path: Path) -> None:
    write_audit(tmp_path / "one", _ROWS)
    other = write_audit(tmp_path / "other", _ROWS[1:])
    with pytest.raises(InvalidInputError, match="not those of the plan"):
        _verify(tmp_path / "one", plan=other.plan)
    with pytest.raises(InvalidInputError, match="not those of the plan"):
        _verify(tmp_path / "one", instance_id="another")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "log-segment"}, "never deleted"),
        ({"kind": "unknown"}, "never deleted"),
        ({"kind": "something new"}, "never deleted"),
        ({"topic": None}, "no topic"),
        ({"kind": "cursor"}, "no cursor's name"),
    ],
)
def test_a_row_that_cannot_be_recorded_refuses_the_whole_plan(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    write_audit(tmp_path, [orphan(1), orphan(2, **changed), orphan(3)])
    with pytest.raises(InvalidInputError, match=f"ledger 2 .*{message}"):
        _verify(tmp_path)


def test_only_the_approved_plan_is_sent(cluster: Cluster) -> None:
    plan = cluster.summary.plan
    assert plan is not None
    demand_approval(plan, plan.sha256.upper())
    for approved in (None, "", plan.sha256[:12], "0" * 64):
        with pytest.raises(InvalidInputError):
            demand_approval(plan, approved)


def test_another_cluster_and_an_old_audit_are_refused(cluster: Cluster) -> None:
    demand_target(cluster.summary, INSTANCE_ID, STORE_TIME_MS + DAY_MS, DAY_MS)
    with pytest.raises(ConflictError, match="belongs to other"):
        demand_target(cluster.summary, "other", STORE_TIME_MS, DAY_MS)
    with pytest.raises(ConflictError, match="older than 1 day"):
        demand_target(cluster.summary, INSTANCE_ID, STORE_TIME_MS + DAY_MS + 1, DAY_MS)


def test_an_audit_without_all_its_files_is_refused(tmp_path: Path) -> None:
    (part, *_) = write_audit(tmp_path, _ROWS).files
    (tmp_path / part).unlink()
    with pytest.raises(InvalidInputError, match="exactly the files"):
        open_audit(tmp_path)
    (tmp_path / "summary.json").unlink()
    with pytest.raises(InvalidInputError, match="unfinished"):
        open_audit(tmp_path)
