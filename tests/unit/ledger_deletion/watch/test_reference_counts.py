"""Existing ledgers that no node names: doubt counts as a reference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from pulsar_sidecar.features.ledger_deletion.watch.named_ledgers import named_ledgers
from pulsar_sidecar.features.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import (
    ReferenceCounts,
    VanishedCopy,
    VanishedReference,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext, OffloadSegment
from pulsar_sidecar.ownership.places import locate
from pulsar_sidecar.ownership.protections import Scope, undecodable_node
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

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


def unreferenced(counts: ReferenceCounts) -> list[int]:
    found: list[int] = counts.unreferenced().tolist()
    return found


def counts_of(ledgers: Sequence[int], *named: tuple[str, bytes]) -> ReferenceCounts:
    counts = ReferenceCounts()
    assert counts.walk(listing(ledgers), nodes(*named)) == []
    return counts


# --- nodes' references -----------------------------------------------------------------------------------------------


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
def test_ledgers_named_by_a_node(path: str, data: bytes, kept: set[int], gone: set[int], of_shadow: bool) -> None:
    named = named_ledgers(path, data)
    assert (named.ids, named.replaced, named.of_shadow) == (kept, gone, of_shadow)


@pytest.mark.parametrize("path", [TOPIC, CURSOR, SCHEMA, EITHER, "/schemas/p/n"])
def test_a_node_that_is_not_understood_proves_nothing(path: str) -> None:
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
    with pytest.raises(UndecodableError, match=f"that Pulsar keeps at {path}$"):
        named_ledgers(path, managed_ledger_bytes([1]))


# --- changes ---------------------------------------------------------------------------------------------------------


def test_a_ledger_leaves_with_its_list() -> None:
    counts = counts_of([1, 2, 3], (TOPIC, managed_ledger_bytes([1, 2])))
    assert (unreferenced(counts), counts.ledgers, counts.references, counts.nodes) == ([3], 3, 2, 1)
    assert counts.read(TOPIC, managed_ledger_bytes([2])) == [VanishedReference(LedgerId(1), TOPIC, replaced=False)]
    assert (unreferenced(counts), counts.references, counts.nodes) == ([1, 3], 1, 1)
    assert counts.read(TOPIC, None) == [VanishedReference(LedgerId(2), TOPIC, replaced=False)]
    assert (unreferenced(counts), counts.references, counts.nodes) == ([1, 2, 3], 0, 0)
    assert counts.read(TOPIC, None) == []
    assert counts.read(TOPIC, managed_ledger_bytes([3, 4])) == []
    assert (unreferenced(counts), counts.references, counts.nodes) == ([1, 2], 2, 1)


def test_newly_linked_ledgers_are_reported_once() -> None:
    counts = counts_of([1, 2, 3], (TOPIC, managed_ledger_bytes([1])))
    assert counts.take_linked() == []
    counts.read(TOPIC, managed_ledger_bytes([1, 2]))
    counts.read(OTHER, managed_ledger_bytes([3]))
    assert counts.take_linked() == [2, 3]
    assert counts.take_linked() == []


@pytest.mark.parametrize("walked", [True, False])
def test_a_ledger_in_several_lists_leaves_with_the_last_one(walked: bool) -> None:
    named = [(TOPIC, managed_ledger_bytes([1])), (OTHER, managed_ledger_bytes([1]))]
    counts = counts_of([1], *(named if walked else ()))
    for path, data in () if walked else named:
        counts.read(path, data)
    assert counts.references == 2
    assert set(counts.named_by(LedgerId(1))) == {TOPIC, OTHER}
    assert counts.read(TOPIC, managed_ledger_bytes([])) == []
    assert unreferenced(counts) == []
    assert counts.named_by(LedgerId(1)) == (OTHER,)
    assert counts.read(OTHER, None) == [VanishedReference(LedgerId(1), OTHER, replaced=False)]
    assert unreferenced(counts) == [1]
    assert counts.named_by(LedgerId(1)) == ()


def test_named_by_reads_ids_and_not_bytes() -> None:
    """Eight adjacent bytes of 2^8 and 2^16 can look like a third id."""
    counts = counts_of([], (TOPIC, managed_ledger_bytes([1, 1 << 32])))
    assert counts.named_by(LedgerId(1)) == (TOPIC,)
    assert counts.named_by(LedgerId(1 << 32)) == (TOPIC,)
    for other in (0, 1 << 8, 1 << 24, 1 << 40, (1 << 32) + 1):
        assert counts.named_by(LedgerId(other)) == ()


class WatchedPath(str):
    """A path that reports when it is looked up."""

    looked_up: Callable[[], object] = staticmethod(lambda: None)

    def __hash__(self) -> int:
        self.looked_up()
        return super().__hash__()


def test_a_node_may_go_while_those_that_name_a_ledger_are_looked_for() -> None:
    watched = WatchedPath(TOPIC)
    counts = counts_of([1], (watched, managed_ledger_bytes([1])), (OTHER, managed_ledger_bytes([1])))
    watched.looked_up = lambda: counts.read(OTHER, None)
    assert counts.named_by(LedgerId(1)) == (TOPIC,)


def test_a_ledger_exists_from_its_creation_to_its_removal() -> None:
    counts = ReferenceCounts()
    ledger_id = LedgerId(2**31)
    assert not counts.exists(ledger_id)
    for _ in range(2):
        counts.note_existence(ledger_id, exists=True)
        assert (counts.exists(ledger_id), counts.is_unreferenced(ledger_id), counts.ledgers) == (True, True, 1)
    counts.read(TOPIC, managed_ledger_bytes([ledger_id]))
    assert (counts.exists(ledger_id), counts.is_unreferenced(ledger_id), counts.ledgers) == (True, False, 1)
    for _ in range(2):
        counts.note_existence(ledger_id, exists=False)
        assert (counts.exists(ledger_id), counts.is_unreferenced(ledger_id), counts.ledgers) == (False, False, 0)
    assert counts.named_by(ledger_id) == (TOPIC,)
    counts.read(TOPIC, None)
    assert (unreferenced(counts), counts.is_unreferenced(ledger_id)) == ([], False)
    counts.note_existence(ledger_id, exists=True)
    assert unreferenced(counts) == [ledger_id]


def test_a_ledger_that_came_and_went_between_two_readings_is_found_by_its_own_node() -> None:
    counts = counts_of([1], (TOPIC, managed_ledger_bytes([1])))
    counts.note_existence(LedgerId(2), exists=True)
    assert counts.read(TOPIC, managed_ledger_bytes([1])) == []
    assert unreferenced(counts) == [2]


def test_the_copy_that_tiered_storage_replaced_is_distinguished() -> None:
    counts = counts_of([1, 2], (TOPIC, managed_ledger_bytes([1, 2])))
    found = counts.read(TOPIC, managed_ledger_bytes([1, 2], offloaded=replaced(1)))
    assert found == [VanishedReference(LedgerId(1), TOPIC, replaced=True)]
    assert (unreferenced(counts), counts.references) == ([1], 1)
    (copy,) = counts.read(TOPIC, managed_ledger_bytes([2]))
    assert copy == VanishedCopy(LedgerId(1), TOPIC, OffloadContext(1, 1, "aws-s3", {}), still_listed=False)
    assert counts.read(TOPIC, managed_ledger_bytes([])) == [VanishedReference(LedgerId(2), TOPIC, replaced=False)]


@pytest.mark.parametrize("walks", [True, False])
@pytest.mark.parametrize("then", [managed_ledger_bytes([], properties=SHADOWS), None, managed_ledger_bytes([])])
def test_shadow_list_is_a_reference_but_its_end_is_not_evidence(then: bytes | None, walks: bool) -> None:
    counts = counts_of([1], (OTHER, managed_ledger_bytes([1], properties=SHADOWS)))
    assert (unreferenced(counts), counts.named_by(LedgerId(1))) == ([], (OTHER,))
    if walks:
        assert counts.walk(listing([1]), nodes(*([] if then is None else [(OTHER, then)]))) == []
    else:
        assert counts.read(OTHER, then) == []
    assert (unreferenced(counts), counts.references) == ([1], 0)


def test_list_turned_shadow_is_not_evidence() -> None:
    counts = counts_of([1, 2], (OTHER, managed_ledger_bytes([1, 2])))
    assert counts.read(OTHER, managed_ledger_bytes([2], properties=SHADOWS)) == []
    assert unreferenced(counts) == [1]
    walked = counts_of([1, 2], (OTHER, managed_ledger_bytes([1, 2])))
    changed = nodes((OTHER, managed_ledger_bytes([2], properties=SHADOWS)))
    assert walked.walk(listing([1, 2]), changed) == []
    assert unreferenced(walked) == [1]


@pytest.mark.parametrize(
    ("path", "data", "scope"),
    [(TOPIC, managed_ledger_bytes([1]), Scope.DATA), (CURSOR, cursor_bytes(1), Scope.OWNER)],
)
def test_a_node_that_is_not_understood_keeps_what_it_named(path: str, data: bytes, scope: Scope) -> None:
    counts = counts_of([1], (path, data))
    assert counts.read(path, GARBAGE) == []
    assert (unreferenced(counts), counts.references, counts.nodes) == ([], 1, 1)
    assert counts.unreadable[path].scope is scope
    assert counts.unreadable[path].path == path
    assert counts.unreadable[path].reason
    assert counts.hidden is None
    counts.read(path, data)
    assert counts.unreadable == {}
    counts.read(path, GARBAGE)
    assert counts.read(path, None) == [VanishedReference(LedgerId(1), path, replaced=False)]
    assert counts.unreadable == {}


@pytest.mark.parametrize(("path", "data"), [(TOPIC, GARBAGE), (CURSOR, b""), ("/managed-ledgers/p", b"x")])
def test_why_a_node_is_not_understood_is_reported_in_its_decoders_words(path: str, data: bytes) -> None:
    with pytest.raises(UndecodableError) as error:
        named_ledgers(path, data)
    heard, walked = ReferenceCounts(), ReferenceCounts()
    heard.read(path, data)
    walked.walk(listing([]), nodes((path, data)))
    assert heard.unreadable == walked.unreadable
    assert heard.unreadable[path].reason == undecodable_node(path, locate(path).place, str(error.value)).reason
    assert str(error.value) in heard.unreadable[path].reason


# --- walks -----------------------------------------------------------------------------------------------------------


def test_a_walk_finds_what_vanished_since_the_reading_before() -> None:
    counts = counts_of(
        [1, 2, 3, 4, 5, 6],
        (TOPIC, managed_ledger_bytes([1, 2, 3])),
        (OTHER, managed_ledger_bytes([6, 4])),
        (CURSOR, cursor_bytes(5)),
    )
    found = counts.walk(
        listing([1, 2], [3, 4], [], [5, 6]), nodes((TOPIC, managed_ledger_bytes([2, 3], offloaded=replaced(3))))
    )
    assert found == [
        VanishedReference(LedgerId(1), TOPIC, replaced=False),
        VanishedReference(LedgerId(3), TOPIC, replaced=True),
        VanishedReference(LedgerId(4), OTHER, replaced=False),
        VanishedReference(LedgerId(6), OTHER, replaced=False),
        VanishedReference(LedgerId(5), CURSOR, replaced=False),
    ]
    assert (unreferenced(counts), counts.references, counts.nodes, counts.ledgers) == ([1, 3, 4, 5, 6], 1, 1, 6)


@pytest.mark.parametrize(
    ("data", "is_replaced"), [(managed_ledger_bytes([1], offloaded=replaced(1)), True), (b"", False)]
)
def test_a_list_that_a_walk_finds_empty(data: bytes, is_replaced: bool) -> None:
    counts = counts_of([1], (TOPIC, managed_ledger_bytes([1])))
    found = counts.walk(listing([1]), nodes((TOPIC, data)))
    assert found == [VanishedReference(LedgerId(1), TOPIC, replaced=is_replaced)]
    assert (unreferenced(counts), counts.nodes) == ([1], int(is_replaced))
    assert counts.walk(listing([1]), nodes((TOPIC, data))) == []


# --- copies in tiered storage ----------------------------------------------------------------------------------------

FIRST = OffloadContext(1, -5, "aws-s3", {"bucket": "b"}, complete=False)
SECOND = OffloadContext(2, 7, "aws-s3", {"bucket": "c"})


def offloading(*ids: int, properties: Mapping[str, str] | None = None, **contexts: OffloadContext) -> bytes:
    """A list with these ledgers, and the offload attempt of each, as ``l1=context``."""
    offloaded = {int(name[1:]): context for name, context in contexts.items()}
    return managed_ledger_bytes(ids, offloaded=offloaded, properties=properties)


@pytest.mark.parametrize(
    ("then", "gone", "still_listed"),
    [
        (offloading(1, 2, l1=FIRST), {2: SECOND}, True),
        (offloading(1, l1=FIRST), {2: SECOND}, False),
        (offloading(2, l2=SECOND), {1: FIRST}, False),
        (offloading(1, 2, l1=SECOND, l2=SECOND), {1: FIRST}, True),
        (offloading(1, 2, l1=replace(FIRST, complete=True), l2=SECOND), {}, False),
        (None, {1: FIRST, 2: SECOND}, False),
        (GARBAGE, {}, False),
        (offloading(properties=SHADOWS), {}, False),
    ],
)
@pytest.mark.parametrize("walks", [True, False])
def test_a_copy_that_a_list_no_longer_names(
    then: bytes | None, gone: Mapping[int, OffloadContext], still_listed: bool, walks: bool
) -> None:
    counts = counts_of([], (TOPIC, offloading(1, 2, l1=FIRST, l2=SECOND)))
    assert counts.copy_named_by(LedgerId(1), FIRST)
    assert not counts.copy_named_by(LedgerId(1), SECOND)
    if walks:
        found = counts.walk(listing([]), nodes(*([] if then is None else [(TOPIC, then)])))
    else:
        found = counts.read(TOPIC, then)
    copies = [each for each in found if isinstance(each, VanishedCopy)]
    assert copies == [
        VanishedCopy(LedgerId(ledger_id), TOPIC, context, still_listed) for ledger_id, context in gone.items()
    ]
    for ledger_id, context in gone.items():
        assert not counts.copy_named_by(LedgerId(ledger_id), context)


def test_copy_named_by_a_shadow_is_referenced_without_evidence() -> None:
    both = offloading(1, l1=SECOND)
    counts = counts_of([], (TOPIC, both), (OTHER, offloading(1, l1=SECOND, properties=SHADOWS)))
    assert len(counts.read(TOPIC, None)) == 1
    assert counts.copy_named_by(LedgerId(1), SECOND)
    assert counts.read(OTHER, None) == []
    assert not counts.copy_named_by(LedgerId(1), SECOND)


def test_streaming_segments_are_no_copies_of_one_ledger() -> None:
    segments = replace(SECOND, segments=(OffloadSegment(1, 2, "aws-s3", {}),))
    found = counts_of([], (TOPIC, offloading(1, l1=segments))).read(TOPIC, None)
    assert found == [VanishedReference(LedgerId(1), TOPIC, replaced=False)]


def test_the_nodes_above_schemas_hide_nothing() -> None:
    above = [("/schemas", b""), ("/schemas/p", b""), ("/schemas/p/n", b"")]
    counts = counts_of([1], *above, (SCHEMA, schema_locator_bytes([1])))
    assert counts.unreadable == {}
    found = counts.walk(listing([1]), nodes(*above))
    assert found == [VanishedReference(LedgerId(1), SCHEMA, replaced=False)]


def test_a_ledger_that_moved_to_another_list_has_not_vanished() -> None:
    counts = counts_of([1, 2], (TOPIC, managed_ledger_bytes([1])), (CURSOR, cursor_bytes(2)))
    moved = nodes((TOPIC, managed_ledger_bytes([])), (OTHER, managed_ledger_bytes([1, 2])))
    assert counts.walk(listing([1, 2]), moved) == []
    assert unreferenced(counts) == []


class Path7(str):
    """A path with the same hash as all of its kind."""

    __slots__ = ()

    def __hash__(self) -> int:
        return 7


def test_a_node_that_is_gone_and_has_the_hash_of_another_protects_what_it_named() -> None:
    gone, there = (Path7(TOPIC), managed_ledger_bytes([1])), (Path7(OTHER), managed_ledger_bytes([2]))
    counts = counts_of([1, 2, 3], gone, there)
    assert counts.walk(listing([1, 2, 3]), nodes(there)) == []
    assert unreferenced(counts) == [3]
    assert counts.references == 2


def test_a_walk_forgets_ledgers_that_are_gone() -> None:
    counts = counts_of([1, 2], (TOPIC, managed_ledger_bytes([2])))
    counts.note_existence(LedgerId(3), exists=True)
    assert counts.walk(listing([2]), nodes((TOPIC, managed_ledger_bytes([2])))) == []
    assert (unreferenced(counts), counts.ledgers) == ([], 1)


def test_a_ledger_that_is_linked_between_the_listing_of_ledgers_and_the_reading_of_nodes() -> None:
    counts = counts_of([1], (TOPIC, managed_ledger_bytes([1])))
    counts.walk(listing([1]), nodes((TOPIC, managed_ledger_bytes([1, 2]))))
    assert (unreferenced(counts), counts.exists(LedgerId(2)), counts.ledgers) == ([], False, 1)
    counts.note_existence(LedgerId(2), exists=True)
    assert unreferenced(counts) == []
    assert counts.read(TOPIC, managed_ledger_bytes([1])) == [VanishedReference(LedgerId(2), TOPIC, replaced=False)]
    assert unreferenced(counts) == [2]


def test_ledgers_are_listed_before_nodes_are_read() -> None:
    order: list[str] = []

    def noted(word: str, items: Iterator[object]) -> Iterator[object]:
        for item in items:
            order.append(word)
            yield item

    walked = noted("node", iter(nodes((TOPIC, b""))))
    ReferenceCounts().walk(noted("ledgers", listing([1], [2])), walked)
    assert order == ["ledgers", "ledgers", "node"]


def test_a_ledger_that_is_listed_twice_exists_once() -> None:
    counts = counts_of([])
    counts.walk(listing([4, 2], [2, 4]), [])
    assert (unreferenced(counts), counts.ledgers) == ([2, 4], 2)


def test_before_the_first_walk_nothing_is_known() -> None:
    counts = ReferenceCounts()
    assert (counts.references, counts.ledgers, counts.nodes) == (0, 0, 0)
    assert list(counts.unreferenced()) == []


@pytest.mark.parametrize("unreadable", [WalkedNode(TOPIC, b"", "NoAuth"), WalkedNode(TOPIC, GARBAGE)])
def test_a_walk_keeps_what_an_unread_node_and_those_below_it_named(unreadable: WalkedNode) -> None:
    named = [(TOPIC, managed_ledger_bytes([1])), (CURSOR, cursor_bytes(2)), (OTHER, managed_ledger_bytes([3]))]
    counts = counts_of([1, 2, 3], *named)
    assert counts.walk(listing([1, 2, 3]), [[unreadable], *nodes(named[2])]) == []
    assert (unreferenced(counts), counts.references, counts.nodes) == ([], 3, 3)
    assert counts.unreadable.keys() == {TOPIC}
    assert counts.unreadable[TOPIC].path == TOPIC
    assert counts.hidden == (TOPIC if unreadable.unreadable else None)
    # Once it can be read again, its dropped references are seen.
    found = counts.walk(listing([1, 2, 3]), nodes((TOPIC, b""), named[2]))
    assert {(each.ledger_id, each.path) for each in found} == {(1, TOPIC), (2, CURSOR)}
    assert (counts.unreadable, counts.hidden) == ({}, None)


def test_the_first_node_that_may_not_be_read_is_reported_with_how_far_it_protects() -> None:
    counts = ReferenceCounts()
    assert counts.hidden is None
    walked = [[WalkedNode(SCHEMA, b"", "NoAuth"), WalkedNode(OTHER, b"", "why")], [WalkedNode(CURSOR, b"", "NoAuth")]]
    counts.walk(listing([]), walked)
    assert counts.hidden == SCHEMA
    assert {path: (each.scope, each.reason) for path, each in counts.unreadable.items()} == {
        SCHEMA: (Scope.SCHEMA_BRANCH, "NoAuth"),
        OTHER: (Scope.BRANCH, "why"),
        CURSOR: (Scope.OWNER, "NoAuth"),
    }


def test_an_unread_namespace_keeps_its_topics_and_no_others() -> None:
    named = [(TOPIC, managed_ledger_bytes([1])), ("/managed-ledgers/p/nn/persistent/a", managed_ledger_bytes([2]))]
    counts = counts_of([1, 2], *named)
    found = counts.walk(listing([1, 2]), [[WalkedNode("/managed-ledgers/p/n", b"", "NoAuth")]])
    assert [each.ledger_id for each in found] == [2]
    assert unreferenced(counts) == [2]


def test_a_node_that_was_never_understood_names_nothing_and_protects() -> None:
    counts = ReferenceCounts()
    counts.walk(listing([1]), nodes((TOPIC, GARBAGE)))
    assert (unreferenced(counts), counts.nodes, counts.references) == ([1], 0, 0)
    assert counts.unreadable[TOPIC].scope is Scope.DATA


def broken_listing() -> Iterator[LedgerIds]:
    yield np.array([8], np.int64)
    raise ConnectionError


def broken_nodes() -> Iterator[list[WalkedNode]]:
    yield [WalkedNode(TOPIC, b""), WalkedNode(OTHER, GARBAGE), WalkedNode(SCHEMA, b"", "NoAuth")]
    raise ConnectionError


@pytest.mark.parametrize("listing_breaks", [True, False])
def test_a_walk_that_raises_changes_nothing(listing_breaks: bool) -> None:
    counts = counts_of([1, 2, 3], (TOPIC, managed_ledger_bytes([1, 2])), (OTHER, managed_ledger_bytes([2])))
    counts.read(CURSOR, GARBAGE)
    with pytest.raises(ConnectionError):
        counts.walk(*((broken_listing(), []) if listing_breaks else (listing([8]), broken_nodes())))
    assert (unreferenced(counts), counts.references, counts.nodes, counts.ledgers) == ([3], 3, 2, 3)
    assert (counts.unreadable.keys(), counts.hidden) == ({CURSOR}, None)
    assert set(counts.named_by(LedgerId(2))) == {TOPIC, OTHER}


@pytest.mark.parametrize(
    "ledger_id", [0, 2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**53 + 1, 2**63 - 2, 2**63 - 1]
)
def test_ids_of_any_size(ledger_id: int) -> None:
    counts = counts_of([ledger_id], (TOPIC, managed_ledger_bytes([ledger_id])))
    assert counts.named_by(LedgerId(ledger_id)) == (TOPIC,)
    assert counts.read(TOPIC, None) == [VanishedReference(LedgerId(ledger_id), TOPIC, replaced=False)]
    assert unreferenced(counts) == [ledger_id]
    assert not counts.exists(LedgerId(ledger_id ^ 1))
    counts.note_existence(LedgerId(ledger_id), exists=False)
    assert unreferenced(counts) == []
