"""Which ledgers exist and are in no node: whatever is not sure counts as a reference."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from pulsar_sidecar.ledger_deletion.watch import balance as module
from pulsar_sidecar.ledger_deletion.watch.balance import Balance, Dereference, NamedLedgers, named_ledgers
from pulsar_sidecar.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.ledger_ownership.protections import Scope
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes, schema_locator_bytes

TOPIC = "/managed-ledgers/p/n/persistent/a"
EITHER = "/managed-ledgers/p/n/persistent/persistent/a"
"""A V1 topic of the namespace "persistent", or a cursor of the V2 topic "persistent"."""
OTHER = "/managed-ledgers/p/n/persistent/b"
CURSOR = f"{TOPIC}/sub"
COMPACTION = f"{TOPIC}/__compaction"
SCHEMA = "/schemas/p/n/a"
GARBAGE = b"\x47\x78\x00"
SHADOWS = {SHADOW_SOURCE: "persistent://p/n/a"}
BUCKETS = {"#pulsar.internal.delayed.bucket_0_1": 7, "#pulsar.internal.delayed.bucket_2_3": 8}


def replaced(*ids: int) -> dict[int, OffloadContext]:
    return {each: OffloadContext(1, each, "aws-s3", {}, bookkeeper_deleted=True) for each in ids}


def listing(*pieces: Sequence[int]) -> Iterator[LedgerIds]:
    return (np.array(piece, np.int64) for piece in pieces)


def nodes(*named: tuple[str, bytes]) -> list[list[WalkedNode]]:
    return [[WalkedNode(path, data)] for path, data in named]


def unreferenced(balance: Balance) -> list[int]:
    found: list[int] = balance.unreferenced().tolist()
    return found


def balance_of(ledgers: Sequence[int], *named: tuple[str, bytes]) -> Balance:
    balance = Balance()
    assert balance.walk(listing(ledgers), nodes(*named)) == []
    return balance


# --- what a node names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "data", "kept", "gone", "of_shadow"),
    [
        (TOPIC, managed_ledger_bytes([1, 2]), {1, 2}, set(), False),
        (TOPIC, managed_ledger_bytes([1, 2, 3], offloaded=replaced(2)), {1, 3}, {2}, False),
        (TOPIC, managed_ledger_bytes([1, 2], offloaded={1: OffloadContext(1, 1, "aws-s3", {})}), {1, 2}, set(), False),
        (TOPIC, managed_ledger_bytes([1], properties=SHADOWS), {1}, set(), True),
        (TOPIC, managed_ledger_bytes([1], properties={"mine": "yes"}), {1}, set(), False),
        (TOPIC, b"", set(), set(), False),
        ("/managed-ledgers/p/c/n/persistent/a", managed_ledger_bytes([4]), {4}, set(), False),
        (CURSOR, cursor_bytes(5), {5}, set(), False),
        (CURSOR, cursor_bytes(None), set(), set(), False),
        (CURSOR, cursor_bytes(5, buckets=BUCKETS), {5, 7, 8}, set(), False),
        (COMPACTION, cursor_bytes(None, compacted_ledger=9), {9}, set(), False),
        (COMPACTION, cursor_bytes(5, compacted_ledger=9), {5, 9}, set(), False),
        (SCHEMA, schema_locator_bytes([3, 4]), {3, 4}, set(), False),
        ("/managed-ledgers", b"", set(), set(), False),
        ("/schemas", b"", set(), set(), False),
        ("/schemas/p", b"", set(), set(), False),
        ("/schemas/p/n", b"", set(), set(), False),
        ("/managed-ledgers/p/n/persistent", b"", set(), set(), False),
        (EITHER, b"", set(), set(), False),
        (EITHER, managed_ledger_bytes([1, 2], offloaded=replaced(2)), {1}, {2}, False),
        (EITHER, managed_ledger_bytes([1], properties=SHADOWS), {1}, set(), True),
        (EITHER, cursor_bytes(5), {5}, set(), False),
    ],
)
def test_what_a_node_names(path: str, data: bytes, kept: set[int], gone: set[int], of_shadow: bool) -> None:
    named = named_ledgers(path, data)
    assert (named.ids, named.replaced, named.of_shadow) == (kept, gone, of_shadow)


@pytest.mark.parametrize("path", [TOPIC, CURSOR, SCHEMA, EITHER, "/schemas/p/n"])
def test_a_node_that_is_not_understood_says_nothing(path: str) -> None:
    with pytest.raises(UndecodableError):
        named_ledgers(path, GARBAGE)


def test_the_node_that_could_be_either_is_named_when_it_is_not_understood() -> None:
    with pytest.raises(UndecodableError, match=f"^{EITHER} is neither a managed ledger nor a cursor"):
        named_ledgers(EITHER, GARBAGE)


@pytest.mark.parametrize("path", [CURSOR, SCHEMA])
def test_a_cursor_or_a_schema_without_data_is_one_that_was_lost(path: str) -> None:
    with pytest.raises(UndecodableError):
        named_ledgers(path, b"")


@pytest.mark.parametrize("path", ["/managed-ledgers/p", "/managed-ledgers/p/n/persistent"])
def test_data_where_this_version_knows_of_none_is_not_understood(path: str) -> None:
    with pytest.raises(UndecodableError, match=f"kept at {path}; look at it by hand"):
        named_ledgers(path, managed_ledger_bytes([1]))


def test_by_default_a_node_names_nothing() -> None:
    assert NamedLedgers() == NamedLedgers(frozenset(), frozenset(), of_shadow=False)


# --- changes ---------------------------------------------------------------------------------------------------------


def test_a_ledger_leaves_with_its_list() -> None:
    balance = balance_of([1, 2, 3], (TOPIC, managed_ledger_bytes([1, 2])))
    assert (unreferenced(balance), balance.ledgers, balance.references, balance.nodes) == ([3], 3, 2, 1)
    assert balance.read(TOPIC, managed_ledger_bytes([2])) == [Dereference(LedgerId(1), TOPIC, False, False)]
    assert (unreferenced(balance), balance.references, balance.nodes) == ([1, 3], 1, 1)
    assert balance.read(TOPIC, None) == [Dereference(LedgerId(2), TOPIC, removed=True, replaced=False)]
    assert (unreferenced(balance), balance.references, balance.nodes) == ([1, 2, 3], 0, 0)
    assert balance.read(TOPIC, None) == []
    assert balance.read(TOPIC, managed_ledger_bytes([3, 4])) == []
    assert (unreferenced(balance), balance.references, balance.nodes) == ([1, 2], 2, 1)


def test_what_nodes_began_to_name_is_told_once() -> None:
    balance = balance_of([1, 2, 3], (TOPIC, managed_ledger_bytes([1])))
    assert balance.take_linked() == []
    balance.read(TOPIC, managed_ledger_bytes([1, 2]))
    balance.read(OTHER, managed_ledger_bytes([3]))
    assert balance.take_linked() == [2, 3]
    assert balance.take_linked() == []


def test_several_ledgers_leave_in_the_order_of_their_ids() -> None:
    balance = balance_of([], (TOPIC, managed_ledger_bytes([9, 2, 30, 4, 2**40])))
    assert [each.ledger_id for each in balance.read(TOPIC, b"")] == [2, 4, 9, 30, 2**40]


def test_a_ledger_in_several_lists_leaves_with_the_last_one() -> None:
    balance = balance_of([1], (TOPIC, managed_ledger_bytes([1])), (OTHER, managed_ledger_bytes([1])))
    assert balance.references == 2
    assert set(balance.named_by(LedgerId(1))) == {TOPIC, OTHER}
    assert balance.read(TOPIC, managed_ledger_bytes([])) == []
    assert unreferenced(balance) == []
    assert balance.named_by(LedgerId(1)) == (OTHER,)
    assert balance.read(OTHER, None) == [Dereference(LedgerId(1), OTHER, removed=True, replaced=False)]
    assert unreferenced(balance) == [1]
    assert balance.named_by(LedgerId(1)) == ()


def test_named_by_reads_ids_and_not_bytes() -> None:
    """Of 2^8 and 2^16, eight bytes in a row can look like a third id's."""
    balance = balance_of([], (TOPIC, managed_ledger_bytes([1, 1 << 32])))
    assert balance.named_by(LedgerId(1)) == (TOPIC,)
    assert balance.named_by(LedgerId(1 << 32)) == (TOPIC,)
    for other in (0, 1 << 8, 1 << 24, 1 << 40, (1 << 32) + 1):
        assert balance.named_by(LedgerId(other)) == ()


def test_a_ledger_exists_from_its_creation_to_its_removal() -> None:
    balance = Balance()
    ledger_id = LedgerId(2**31)
    assert not balance.exists(ledger_id)
    for _ in range(2):
        balance.hear(ledger_id, exists=True)
        assert (balance.exists(ledger_id), balance.is_unreferenced(ledger_id), balance.ledgers) == (True, True, 1)
    balance.read(TOPIC, managed_ledger_bytes([ledger_id]))
    assert (balance.exists(ledger_id), balance.is_unreferenced(ledger_id), balance.ledgers) == (True, False, 1)
    for _ in range(2):
        balance.hear(ledger_id, exists=False)
        assert (balance.exists(ledger_id), balance.is_unreferenced(ledger_id), balance.ledgers) == (False, False, 0)
    assert balance.named_by(ledger_id) == (TOPIC,)
    balance.read(TOPIC, None)
    assert (unreferenced(balance), balance.is_unreferenced(ledger_id)) == ([], False)
    balance.hear(ledger_id, exists=True)
    assert unreferenced(balance) == [ledger_id]


def test_a_ledger_that_came_and_went_between_two_readings_is_found_by_its_own_node() -> None:
    balance = balance_of([1], (TOPIC, managed_ledger_bytes([1])))
    balance.hear(LedgerId(2), exists=True)
    assert balance.read(TOPIC, managed_ledger_bytes([1])) == []
    assert unreferenced(balance) == [2]


def test_the_copy_that_tiered_storage_replaced_is_told_apart() -> None:
    balance = balance_of([1, 2], (TOPIC, managed_ledger_bytes([1, 2])))
    found = balance.read(TOPIC, managed_ledger_bytes([1, 2], offloaded=replaced(1)))
    assert found == [Dereference(LedgerId(1), TOPIC, removed=False, replaced=True)]
    assert (unreferenced(balance), balance.references) == ([1], 1)
    assert balance.read(TOPIC, managed_ledger_bytes([2])) == []
    assert balance.read(TOPIC, managed_ledger_bytes([])) == [Dereference(LedgerId(2), TOPIC, False, False)]


@pytest.mark.parametrize("then", [managed_ledger_bytes([], properties=SHADOWS), None, managed_ledger_bytes([])])
def test_a_shadows_list_is_a_reference_and_its_end_is_no_evidence(then: bytes | None) -> None:
    balance = balance_of([1], (OTHER, managed_ledger_bytes([1], properties=SHADOWS)))
    assert (unreferenced(balance), balance.named_by(LedgerId(1))) == ([], (OTHER,))
    assert balance.read(OTHER, then) == []
    assert (unreferenced(balance), balance.references) == ([1], 0)


def test_a_list_that_became_a_shadows_is_no_evidence() -> None:
    balance = balance_of([1, 2], (OTHER, managed_ledger_bytes([1, 2])))
    assert balance.read(OTHER, managed_ledger_bytes([2], properties=SHADOWS)) == []
    assert unreferenced(balance) == [1]
    walked = balance_of([1, 2], (OTHER, managed_ledger_bytes([1, 2])))
    changed = nodes((OTHER, managed_ledger_bytes([2], properties=SHADOWS)))
    assert walked.walk(listing([1, 2]), changed) == []
    assert unreferenced(walked) == [1]


@pytest.mark.parametrize(
    ("path", "data", "scope"),
    [(TOPIC, managed_ledger_bytes([1]), Scope.DATA), (CURSOR, cursor_bytes(1), Scope.OWNER)],
)
def test_a_node_that_is_not_understood_keeps_what_it_named(path: str, data: bytes, scope: Scope) -> None:
    balance = balance_of([1], (path, data))
    assert balance.read(path, GARBAGE) == []
    assert (unreferenced(balance), balance.references, balance.nodes) == ([], 1, 1)
    assert balance.unreadable[path].scope is scope
    assert balance.unreadable[path].path == path
    assert balance.unreadable[path].reason
    assert balance.hidden is None
    balance.read(path, data)
    assert balance.unreadable == {}
    balance.read(path, GARBAGE)
    assert balance.read(path, None) == [Dereference(LedgerId(1), path, removed=True, replaced=False)]
    assert balance.unreadable == {}


def test_a_ledger_that_most_nodes_name_stays_referenced_until_the_next_walk() -> None:
    """Counts end at 32,767; nothing is concluded from fewer."""
    balance = Balance()
    paths = [f"{TOPIC}-{number}" for number in range(32_768)]
    data = managed_ledger_bytes([1])
    for path in paths:
        balance.read(path, data)
    balance.hear(LedgerId(1), exists=True)
    for path in paths:
        assert balance.read(path, None) == []
    assert unreferenced(balance) == []
    assert balance.walk(listing([1]), []) == []
    assert unreferenced(balance) == [1]


def test_one_list_fewer_than_the_most_is_counted() -> None:
    data = managed_ledger_bytes([1])
    named = [(f"{TOPIC}-{number}", data) for number in range(32_766)]
    balance = balance_of([1], *named)
    for path, _ in named[:-1]:
        balance.read(path, None)
    assert unreferenced(balance) == []
    balance.read(named[-1][0], None)
    assert unreferenced(balance) == [1]


def test_a_walk_counts_no_further_than_changes_do() -> None:
    data = managed_ledger_bytes([1])
    named = [(f"{TOPIC}-{number}", data) for number in range(32_770)]
    balance = balance_of([1], *named)
    assert balance.references == 32_770
    for path, _ in named:
        balance.read(path, None)
    assert unreferenced(balance) == []
    assert balance.exists(LedgerId(1))


@pytest.mark.parametrize("threshold", [1, 2, 3, 7, 100_000])
def test_when_the_recent_ones_are_filed_changes_nothing(threshold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RECENT", threshold)
    balance = balance_of([5, 1, 9], (TOPIC, managed_ledger_bytes([5])))
    for number in (12, 2, 30, 7, 2**62):
        balance.hear(LedgerId(number), exists=True)
    balance.read(OTHER, managed_ledger_bytes([2, 9, 100]))
    assert unreferenced(balance) == [1, 7, 12, 30, 2**62]
    assert balance.ledgers == 8
    balance.hear(LedgerId(7), exists=False)
    balance.hear(LedgerId(1), exists=False)
    balance.hear(LedgerId(100), exists=True)
    assert unreferenced(balance) == [12, 30, 2**62]
    assert not balance.exists(LedgerId(7))
    balance.hear(LedgerId(7), exists=True)
    balance.read(OTHER, managed_ledger_bytes([7]))
    assert unreferenced(balance) == [2, 9, 12, 30, 100, 2**62]
    assert balance.ledgers == 8


# --- walks -----------------------------------------------------------------------------------------------------------


def test_a_walk_finds_what_vanished_since_the_reading_before() -> None:
    balance = balance_of(
        [1, 2, 3, 4, 5, 6],
        (TOPIC, managed_ledger_bytes([1, 2, 3])),
        (OTHER, managed_ledger_bytes([6, 4])),
        (CURSOR, cursor_bytes(5)),
    )
    found = balance.walk(
        listing([1, 2], [3, 4], [], [5, 6]), nodes((TOPIC, managed_ledger_bytes([2, 3], offloaded=replaced(3))))
    )
    assert found == [
        Dereference(LedgerId(1), TOPIC, removed=False, replaced=False),
        Dereference(LedgerId(3), TOPIC, removed=False, replaced=True),
        Dereference(LedgerId(4), OTHER, removed=True, replaced=False),
        Dereference(LedgerId(6), OTHER, removed=True, replaced=False),
        Dereference(LedgerId(5), CURSOR, removed=True, replaced=False),
    ]
    assert (unreferenced(balance), balance.references, balance.nodes, balance.ledgers) == ([1, 3, 4, 5, 6], 1, 1, 6)


@pytest.mark.parametrize(
    ("data", "is_replaced"), [(managed_ledger_bytes([1], offloaded=replaced(1)), True), (b"", False)]
)
def test_a_list_that_a_walk_finds_empty_was_not_removed(data: bytes, is_replaced: bool) -> None:
    balance = balance_of([1], (TOPIC, managed_ledger_bytes([1])))
    found = balance.walk(listing([1]), nodes((TOPIC, data)))
    assert found == [Dereference(LedgerId(1), TOPIC, removed=False, replaced=is_replaced)]
    assert (unreferenced(balance), balance.nodes) == ([1], 0)
    assert balance.walk(listing([1]), nodes((TOPIC, data))) == []


def test_the_nodes_above_schemas_hide_nothing() -> None:
    above = [("/schemas", b""), ("/schemas/p", b""), ("/schemas/p/n", b"")]
    balance = balance_of([1], *above, (SCHEMA, schema_locator_bytes([1])))
    assert balance.unreadable == {}
    found = balance.walk(listing([1]), nodes(*above))
    assert found == [Dereference(LedgerId(1), SCHEMA, removed=True, replaced=False)]


def test_a_ledger_that_moved_to_another_list_has_not_vanished() -> None:
    balance = balance_of([1, 2], (TOPIC, managed_ledger_bytes([1])), (CURSOR, cursor_bytes(2)))
    moved = nodes((TOPIC, managed_ledger_bytes([])), (OTHER, managed_ledger_bytes([1, 2])))
    assert balance.walk(listing([1, 2]), moved) == []
    assert unreferenced(balance) == []


class Path7(str):
    """A path with the same hash as all of its kind."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


def test_a_node_that_is_gone_and_has_the_hash_of_another_protects_what_it_named() -> None:
    gone, there = (Path7(TOPIC), managed_ledger_bytes([1])), (Path7(OTHER), managed_ledger_bytes([2]))
    balance = balance_of([1, 2, 3], gone, there)
    assert balance.walk(listing([1, 2, 3]), nodes(there)) == []
    assert unreferenced(balance) == [3]
    assert balance.references == 2


def test_a_shadow_that_is_gone_is_no_evidence_in_a_walk_either() -> None:
    balance = balance_of([1], (OTHER, managed_ledger_bytes([1], properties=SHADOWS)))
    assert balance.walk(listing([1]), []) == []
    assert unreferenced(balance) == [1]
    balance = balance_of([1], (OTHER, managed_ledger_bytes([1], properties=SHADOWS)))
    assert balance.walk(listing([1]), nodes((OTHER, managed_ledger_bytes([])))) == []
    assert unreferenced(balance) == [1]


def test_a_walk_forgets_ledgers_that_are_gone() -> None:
    balance = balance_of([1, 2], (TOPIC, managed_ledger_bytes([2])))
    balance.hear(LedgerId(3), exists=True)
    assert balance.walk(listing([2]), nodes((TOPIC, managed_ledger_bytes([2])))) == []
    assert (unreferenced(balance), balance.ledgers) == ([], 1)


def test_a_ledger_that_is_linked_between_the_listing_of_ledgers_and_the_reading_of_nodes() -> None:
    balance = balance_of([1], (TOPIC, managed_ledger_bytes([1])))
    balance.walk(listing([1]), nodes((TOPIC, managed_ledger_bytes([1, 2]))))
    assert (unreferenced(balance), balance.exists(LedgerId(2)), balance.ledgers) == ([], False, 1)
    balance.hear(LedgerId(2), exists=True)
    assert unreferenced(balance) == []
    assert balance.read(TOPIC, managed_ledger_bytes([1])) == [Dereference(LedgerId(2), TOPIC, False, False)]
    assert unreferenced(balance) == [2]


def test_ledgers_are_listed_before_nodes_are_read() -> None:
    order: list[str] = []

    def told(word: str, items: Iterator[object]) -> Iterator[object]:
        for item in items:
            order.append(word)
            yield item

    walked = told("node", iter(nodes((TOPIC, b""))))
    Balance().walk(told("ledgers", listing([1], [2])), walked)  # type: ignore[arg-type]
    assert order == ["ledgers", "ledgers", "node"]


def test_a_ledger_that_is_listed_twice_exists_once() -> None:
    balance = balance_of([])
    balance.walk(listing([4, 2], [2, 4]), [])
    assert (unreferenced(balance), balance.ledgers) == ([2, 4], 2)


def test_before_the_first_walk_nothing_is_known() -> None:
    balance = Balance()
    assert (balance.references, balance.ledgers, balance.nodes) == (0, 0, 0)
    assert list(balance.unreferenced()) == []


@pytest.mark.parametrize("unreadable", [WalkedNode(TOPIC, b"", "NoAuth"), WalkedNode(TOPIC, GARBAGE)])
def test_a_walk_keeps_what_an_unread_node_and_those_below_it_named(unreadable: WalkedNode) -> None:
    named = [(TOPIC, managed_ledger_bytes([1])), (CURSOR, cursor_bytes(2)), (OTHER, managed_ledger_bytes([3]))]
    balance = balance_of([1, 2, 3], *named)
    assert balance.walk(listing([1, 2, 3]), [[unreadable], *nodes(named[2])]) == []
    assert (unreferenced(balance), balance.references, balance.nodes) == ([], 3, 3)
    assert balance.unreadable.keys() == {TOPIC}
    assert balance.unreadable[TOPIC].path == TOPIC
    assert balance.hidden == (TOPIC if unreadable.unreadable else None)
    # Once it can be read again, what it dropped meanwhile is seen.
    found = balance.walk(listing([1, 2, 3]), nodes((TOPIC, b""), named[2]))
    assert {(each.ledger_id, each.path, each.removed) for each in found} == {(1, TOPIC, False), (2, CURSOR, True)}
    assert (balance.unreadable, balance.hidden) == ({}, None)


def test_the_first_node_that_may_not_be_read_is_told_with_how_far_it_protects() -> None:
    balance = Balance()
    assert balance.hidden is None
    walked = [[WalkedNode(SCHEMA, b"", "NoAuth"), WalkedNode(OTHER, b"", "why")], [WalkedNode(CURSOR, b"", "NoAuth")]]
    balance.walk(listing([]), walked)
    assert balance.hidden == SCHEMA
    assert {path: (each.scope, each.reason) for path, each in balance.unreadable.items()} == {
        SCHEMA: (Scope.SCHEMA_BRANCH, "NoAuth"),
        OTHER: (Scope.BRANCH, "why"),
        CURSOR: (Scope.OWNER, "NoAuth"),
    }


def test_an_unread_namespace_keeps_its_topics_and_no_others() -> None:
    named = [(TOPIC, managed_ledger_bytes([1])), ("/managed-ledgers/p/nn/persistent/a", managed_ledger_bytes([2]))]
    balance = balance_of([1, 2], *named)
    found = balance.walk(listing([1, 2]), [[WalkedNode("/managed-ledgers/p/n", b"", "NoAuth")]])
    assert [each.ledger_id for each in found] == [2]
    assert unreferenced(balance) == [2]


def test_a_node_that_was_never_understood_names_nothing_and_protects() -> None:
    balance = Balance()
    balance.walk(listing([1]), nodes((TOPIC, GARBAGE)))
    assert (unreferenced(balance), balance.nodes, balance.references) == ([1], 0, 0)
    assert balance.unreadable[TOPIC].scope is Scope.DATA


def broken_listing() -> Iterator[LedgerIds]:
    yield np.array([8], np.int64)
    raise ConnectionError


def broken_nodes() -> Iterator[list[WalkedNode]]:
    yield [WalkedNode(TOPIC, b""), WalkedNode(OTHER, GARBAGE), WalkedNode(SCHEMA, b"", "NoAuth")]
    raise ConnectionError


@pytest.mark.parametrize("listing_breaks", [True, False])
def test_a_walk_that_raises_changes_nothing(listing_breaks: bool) -> None:
    balance = balance_of([1, 2, 3], (TOPIC, managed_ledger_bytes([1, 2])), (OTHER, managed_ledger_bytes([2])))
    balance.read(CURSOR, GARBAGE)
    with pytest.raises(ConnectionError):
        balance.walk(*((broken_listing(), []) if listing_breaks else (listing([8]), broken_nodes())))
    assert (unreferenced(balance), balance.references, balance.nodes, balance.ledgers) == ([3], 3, 2, 3)
    assert (balance.unreadable.keys(), balance.hidden) == ({CURSOR}, None)
    assert set(balance.named_by(LedgerId(2))) == {TOPIC, OTHER}


@pytest.mark.parametrize(
    "ledger_id", [0, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**53 + 1, 2**63 - 2, 2**63 - 1]
)
def test_ids_of_any_size(ledger_id: int) -> None:
    balance = balance_of([ledger_id], (TOPIC, managed_ledger_bytes([ledger_id])))
    assert balance.named_by(LedgerId(ledger_id)) == (TOPIC,)
    assert balance.read(TOPIC, None) == [Dereference(LedgerId(ledger_id), TOPIC, removed=True, replaced=False)]
    assert unreferenced(balance) == [ledger_id]
    assert not balance.exists(LedgerId(ledger_id - 1))
    balance.hear(LedgerId(ledger_id), exists=False)
    assert unreferenced(balance) == []
