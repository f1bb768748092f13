"""Deduplication cursors in a dump on a disk, and threads that work through an extract."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from pulsar_sidecar.bootstrap.deduplication_files import few_ahead, find_stuck_in_dump
from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.features.deduplication.results import StuckReason, StuckReport
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.names import CursorName, TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import POLICIES, cursor_path, managed_ledger_path

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes
from tests.unit.audit.audited_clusters import AuditedCluster

ORDERS, PLAIN, ELSEWHERE = (
    parse_topic_name(f"persistent://public/{name}") for name in ("default/orders", "default/plain", "elsewhere/orders")
)
Find = Callable[..., StuckReport]


def topic_nodes(topic: TopicName, **cursors: bytes) -> dict[str, bytes]:
    """A topic of three ledgers; ``dedup`` is its deduplication cursor."""
    name = topic.managed_ledger_name
    nodes = {managed_ledger_path(name): managed_ledger_bytes([1, 2, 3])}
    for cursor, data in cursors.items():
        encoded = DEDUPLICATION_CURSOR if cursor == "dedup" else CursorName(cursor)
        nodes[cursor_path(name, encoded)] = data
    return nodes


NODES = {
    f"{POLICIES}/public/default": b"{}",
    f"{POLICIES}/public/elsewhere": b'{"deduplicationEnabled": true}',
    **topic_nodes(ORDERS, dedup=cursor_bytes(mark_delete=(1, 4)), billing=cursor_bytes(mark_delete=(2, 0))),
    **topic_nodes(PLAIN, billing=cursor_bytes()),
    **topic_nodes(ELSEWHERE, dedup=cursor_bytes(9, mark_delete=(1, 9))),
}


@pytest.fixture
def find(tmp_path: Path) -> Find:
    def found(
        namespace: str | None = None,
        *,
        entries: int = 100,
        enabled: bool = False,
        nodes: Mapping[str, bytes | None] = NODES,
    ) -> StuckReport:
        dump = AuditedCluster(dict(nodes)).dump(tmp_path / f"dump-{len(list(tmp_path.iterdir()))}")
        return find_stuck_in_dump(dump, namespace, LagLimits(entries, 10**9), 10, enabled)

    return found


def test_a_cursor_is_left_over_as_far_as_a_dump_shows(find: Find) -> None:
    report = find()
    (found,) = report.stuck
    assert (found.topic, found.reason, found.certain) == (str(ORDERS), StuckReason.LEFT_OVER, False)
    assert found.because == "off by the broker; a dump holds no policies of topics"
    assert (found.held_ledgers, found.held_bytes, found.freed_bytes) == (2, 2_000, 1_000)
    assert found.since is not None
    assert found.since.entries == 15
    assert found.remedy.startswith("if no broker has it loaded, load the topic once")
    assert (report.topics, report.cursors, report.unreadable) == (2, 2, ())
    assert find(enabled=True).stuck == ()


def test_without_topics_policies_no_lag_is_certain(find: Find) -> None:
    found = {each.topic: each for each in find(entries=9, enabled=True).stuck}
    assert {topic: (each.reason, each.certain) for topic, each in found.items()} == {
        str(ORDERS): (StuckReason.LAGS, False),
        str(ELSEWHERE): (StuckReason.LAGS, False),
    }


def test_a_namespace_is_looked_at_alone(find: Find) -> None:
    assert [each.topic for each in find("public/default").stuck] == [str(ORDERS)]
    assert find("public/elsewhere").stuck == ()
    with pytest.raises(NotFoundError):
        find("public/missing")


@pytest.mark.parametrize(
    ("policies", "reason"), [(b"[", "the policies of a namespace cannot be decoded"), (None, "no right to")]
)
def test_a_namespace_whose_policies_are_not_known_is_named(find: Find, policies: bytes | None, reason: str) -> None:
    nodes = {**NODES, f"{POLICIES}/{ORDERS.namespace}": policies}
    report = find(nodes=nodes)
    assert str(ORDERS) not in [each.topic for each in report.stuck]
    assert [each for each in report.unreadable if each.startswith(f"{ORDERS}: {reason}")]
    lagging = {each.topic: each for each in find(entries=9, nodes=nodes).stuck}[str(ORDERS)]
    assert (lagging.reason, lagging.certain) == (StuckReason.LAGS, False)


_ORDERS_CURSOR = cursor_path(ORDERS.managed_ledger_name, DEDUPLICATION_CURSOR)
_ORDERS_OTHER = cursor_path(ORDERS.managed_ledger_name, CursorName("billing"))


@pytest.mark.parametrize(
    ("path", "data", "named"),
    [
        (_ORDERS_CURSOR, b"\xff", str(ORDERS)),
        (_ORDERS_CURSOR, None, _ORDERS_CURSOR),
        (_ORDERS_OTHER, None, _ORDERS_OTHER),
        (managed_ledger_path(ORDERS.managed_ledger_name), None, managed_ledger_path(ORDERS.managed_ledger_name)),
    ],
)
def test_broken_nodes_of_a_dump_are_named(find: Find, path: str, data: bytes | None, named: str) -> None:
    report = find(nodes={**NODES, path: data})
    assert (report.stuck, len(report.unreadable)) == ((), 1)
    assert named in report.unreadable[0]


def test_a_directory_without_a_dump_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        find_stuck_in_dump(tmp_path, None, LagLimits(), 10, False)


def test_threads_work_on_few_pieces_ahead_and_answer_in_order() -> None:
    begun: list[int] = []

    def work(piece: int) -> int:
        begun.append(piece)
        return 2 * piece

    with few_ahead(3) as workers:
        answers = workers(work, range(100))
        for piece in range(100):
            assert next(answers) == 2 * piece
            assert len(begun) <= piece + 5
        assert next(answers, None) is None


def test_waiting_pieces_are_cancelled_after_an_error() -> None:
    begun: list[int] = []
    is_over = threading.Event()

    def work(piece: int) -> None:
        begun.append(piece)
        if piece == 0:
            raise InvalidInputError("this piece")
        is_over.wait(5)

    def look() -> None:
        with few_ahead(1) as workers:
            try:
                list(workers(work, range(100)))
            finally:
                threading.Timer(0.05, is_over.set).start()

    with pytest.raises(InvalidInputError, match="this piece"):
        look()
    assert begun in ([0], [0, 1])
