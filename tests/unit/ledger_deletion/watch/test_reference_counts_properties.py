"""After any changes in any order, the counts equal a count from scratch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.watch import reference_counts as module
from pulsar_sidecar.features.ledger_deletion.watch.named_ledgers import NamedLedgers
from pulsar_sidecar.features.ledger_deletion.watch.ports import LedgerIds, WalkedNode
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import (
    ReferenceCounts,
    Vanished,
    VanishedCopy,
    VanishedReference,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import cursor_bytes, managed_ledger_bytes, schema_locator_bytes
from tests.fakes.offload import FakeOffloadedLedgers

TOPIC = "/managed-ledgers/p/n/persistent/a"
OTHER = "/managed-ledgers/p/n/persistent/b"
SHADOW = "/managed-ledgers/p/n/persistent/shadow"
CURSOR = f"{TOPIC}/sub"
SCHEMA = "/schemas/p/n/a"
PATHS = (TOPIC, OTHER, SHADOW, CURSOR, SCHEMA)
IDS = (1, 2, 3, 5, 8, 2**31 - 2, 2**31 - 1, 2**31, 2**40, 2**63 - 1)
GARBAGE = b"\x47\x78\x00"
NOTHING = NamedLedgers()

ids = st.lists(st.sampled_from(IDS), unique=True, max_size=4)


@dataclass(frozen=True, slots=True)
class LedgerChange:
    ledger_id: int
    exists: bool
    reported: bool


@dataclass(frozen=True, slots=True)
class NodeChange:
    """``data`` None: the node is removed."""

    path: str
    data: bytes | None
    names: NamedLedgers | None
    reported: bool


@dataclass(frozen=True, slots=True)
class Walk:
    forbidden: frozenset[str]
    breaks: bool


Event = LedgerChange | NodeChange | Walk


GoneCopy = tuple[LedgerId, str, int, bool, bool]
"""A vanished copy that a set takes: its ledger, node, attempt, whether it was complete, and is still listed."""


def plain(vanished: Vanished) -> VanishedReference | GoneCopy:
    if isinstance(vanished, VanishedReference):
        return vanished
    return _gone(vanished.ledger_id, vanished.path, vanished.context, still_listed=vanished.still_listed)


def _gone(ledger_id: LedgerId, path: str, context: OffloadContext, *, still_listed: bool) -> GoneCopy:
    assert (context.uid_lsb, context.driver_name) == (ledger_id, FakeOffloadedLedgers.context().driver_name)
    return ledger_id, path, context.uid_msb, context.complete, still_listed


def node_data(
    path: str, listed: Sequence[int], replaced: Sequence[int], attempt: int = 1
) -> tuple[bytes, NamedLedgers | None]:
    """Return a node that names these ledgers, with its content."""
    kept = [each for each in listed if each not in replaced]
    if path == CURSOR:
        buckets = {f"#pulsar.internal.delayed.bucket_{each}_0": each for each in listed[1:]}
        return cursor_bytes(listed[0] if listed else None, buckets=buckets), NamedLedgers(_ids(listed))
    if path == SCHEMA:
        return (schema_locator_bytes(listed), NamedLedgers(_ids(listed))) if listed else (b"", None)
    base = FakeOffloadedLedgers.context()
    gone = {
        LedgerId(each): OffloadContext(attempt, each, base.driver_name, {}, bookkeeper_deleted=True)
        for each in replaced
    }
    properties = {SHADOW_SOURCE: "persistent://p/n/a"} if path == SHADOW else {}
    data = managed_ledger_bytes([*kept, *replaced], offloaded=gone, properties=properties)
    return data, NamedLedgers(_ids(kept), _ids(replaced), gone, path == SHADOW)


def _ids(numbers: Iterable[int]) -> frozenset[LedgerId]:
    return frozenset(map(LedgerId, numbers))


@st.composite
def node_changes(draw: st.DrawFn) -> NodeChange:
    path, reported = draw(st.sampled_from(PATHS)), draw(st.booleans())
    kind = draw(st.sampled_from(["names", "names", "names", "garbage", "removed"]))
    if kind == "names":
        data, names = node_data(path, draw(ids), draw(ids) if path in (TOPIC, SHADOW) else [], draw(st.integers(1, 2)))
        return NodeChange(path, data, names, reported)
    return NodeChange(path, GARBAGE if kind == "garbage" else None, None, reported)


events = st.lists(
    st.one_of(
        st.builds(LedgerChange, st.sampled_from(IDS), st.booleans(), st.booleans()),
        node_changes(),
        st.builds(Walk, st.frozensets(st.sampled_from(PATHS), max_size=2), st.booleans()),
    ),
    max_size=25,
)


class WalkBrokeError(Exception):
    pass


@dataclass
class Truth:
    """The store's state, and the references that a reader with this many reports may rely on."""

    ledgers: set[LedgerId] = field(default_factory=set)
    nodes: dict[str, tuple[bytes, NamedLedgers | None]] = field(default_factory=dict)
    known: set[LedgerId] = field(default_factory=set)
    named: dict[str, NamedLedgers] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def unreferenced(self) -> list[int]:
        return sorted(each for each in self.known if not self.count(each))

    def count(self, ledger_id: LedgerId) -> int:
        return sum(ledger_id in named.ids for named in self.named.values())

    def reads(self, path: str) -> set[VanishedReference | GoneCopy]:
        """A node as the store has it now; the last references that went, and the copies that it named."""
        return self._last(self._dropped(path))

    def _last(self, dropped: set[VanishedReference | GoneCopy]) -> set[VanishedReference | GoneCopy]:
        return {each for each in dropped if isinstance(each, tuple) or not self.count(each.ledger_id)}

    def _dropped(self, path: str) -> set[VanishedReference | GoneCopy]:
        before = self.named.pop(path, NOTHING)
        now = self.nodes.get(path)
        names = NOTHING if now is None else now[1]
        self.broken.discard(path)
        if names is None:
            self.broken.add(path)
            self._name(path, before)
            return set()
        self._name(path, names)
        if before.of_shadow or names.of_shadow:
            return set()
        gone = before.ids - names.ids
        copies = {
            _gone(each, path, context, still_listed=each in names.ids | names.replaced)
            for each, context in before.copies.items()
            if each not in names.copies or names.copies[each].uid_msb != context.uid_msb
        }
        return copies | {VanishedReference(each, path, replaced=each in names.replaced) for each in gone}

    def walks(self, forbidden: frozenset[str]) -> set[VanishedReference | GoneCopy]:
        """The whole store, without unreadable nodes and their descendants."""
        hidden = self.hidden(forbidden)
        # What two nodes dropped between two walks is no matter of the order in which they are read.
        dropped = {each for path in PATHS if path not in hidden for each in self._dropped(path)}
        self.known = set(self.ledgers)
        self.broken = {path for path in self.broken if path not in hidden} | self.met(forbidden)
        return self._last(dropped)

    def hidden(self, forbidden: frozenset[str]) -> frozenset[str]:
        """Nodes of which nothing is concluded: unreadable ones, and missing ones below those."""
        unread = self.met(forbidden) | {path for path, (_, names) in self.nodes.items() if names is None}
        below = {path for path in PATHS for above in unread if path.startswith(f"{above}/")}
        return self.met(forbidden) | (below - self._listed(forbidden))

    def met(self, forbidden: frozenset[str]) -> frozenset[str]:
        """Nodes that a walk meets and may not read."""
        return forbidden & self.nodes.keys()

    def _listed(self, forbidden: frozenset[str]) -> frozenset[str]:
        met = self.met(forbidden)
        below = {path for path in self.nodes if any(path.startswith(f"{each}/") for each in met)}
        return frozenset(self.nodes.keys() - met - below)

    def pieces(self, forbidden: frozenset[str], *, breaks: bool) -> Iterator[list[WalkedNode]]:
        listed = self._listed(forbidden)
        for path, (data, _) in self.nodes.items():
            if path in listed:
                yield [WalkedNode(path, data)]
            elif path in forbidden:
                yield [WalkedNode(path, b"", "NoAuth")]
        if breaks:
            raise WalkBrokeError

    def _name(self, path: str, named: NamedLedgers) -> None:
        if named.ids or named.copies:
            self.named[path] = named


def pieces_of_ids(numbers: Iterable[int]) -> Iterator[LedgerIds]:
    """One ledger after another, the first one twice, as a listing may that was made while a ledger came."""
    ordered = sorted(numbers)
    for number in [*ordered, *ordered[:1]]:
        yield np.array([number], np.int64)


def replay(history: Sequence[Event], threshold: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_AT_ONCE", threshold)
        counts, truth = ReferenceCounts(), Truth()
        for event in history:
            step(counts, truth, event)
            agree(counts, truth)


def step(counts: ReferenceCounts, truth: Truth, event: Event) -> None:
    match event:
        case LedgerChange(number, exists, reported):
            ledger_id = LedgerId(number)
            _set(truth.ledgers, ledger_id, exists)
            if reported:
                _set(truth.known, ledger_id, exists)
                counts.note_existence(ledger_id, exists=exists)
        case NodeChange(path, data, names, reported):
            if data is None:
                truth.nodes.pop(path, None)
            else:
                truth.nodes[path] = (data, names)
            if reported:
                found = counts.read(path, data)
                assert set(map(plain, found)) == truth.reads(path)
                assert found == sorted(found, key=lambda each: (isinstance(each, VanishedCopy), each.ledger_id))
        case Walk(forbidden, breaks):
            walked = truth.pieces(forbidden, breaks=breaks)
            if breaks:
                with pytest.raises(WalkBrokeError):
                    counts.walk(pieces_of_ids(truth.ledgers), walked)
            else:
                found = counts.walk(pieces_of_ids(truth.ledgers), walked)
                assert set(map(plain, found)) == truth.walks(forbidden)
                assert counts.hidden == next((path for path in truth.nodes if path in truth.met(forbidden)), None)


def _set(ledgers: set[LedgerId], ledger_id: LedgerId, exists: bool) -> None:
    (ledgers.add if exists else ledgers.discard)(ledger_id)


def agree(counts: ReferenceCounts, truth: Truth) -> None:
    assert counts.unreadable.keys() == truth.broken
    assert counts.ledgers == len(truth.known)
    assert counts.nodes == len(truth.named)
    assert counts.references == sum(len(named.ids) for named in truth.named.values())
    for ledger_id in map(LedgerId, IDS):
        assert counts.exists(ledger_id) == (ledger_id in truth.known)
        assert counts.is_unreferenced(ledger_id) == (ledger_id in truth.known and not truth.count(ledger_id))
        named_by = {path for path, named in truth.named.items() if ledger_id in named.ids}
        assert set(counts.named_by(ledger_id)) == named_by
        for attempt in (1, 2):
            copies = {path: named.copies.get(ledger_id) for path, named in truth.named.items()}
            named_by = {path for path, copy in copies.items() if copy is not None and copy.uid_msb == attempt}
            assert set(counts.copy_named_by(ledger_id, OffloadContext(attempt, ledger_id, "", {}))) == named_by
    assert counts.unreferenced().tolist() == truth.unreferenced()


@given(history=events, threshold=st.sampled_from([1, 2, 3, 100_000]))
def test_any_history_gives_what_counting_from_scratch_gives(history: list[Event], threshold: int) -> None:
    replay(history, threshold)


def _both_drop_it_between_two_walks() -> list[Event]:
    changes = [
        NodeChange(path, *node_data(path, listed, []), reported=False)
        for listed in ([2], [])
        for path in (OTHER, SHADOW)
    ]
    walk = Walk(frozenset(), breaks=False)
    return [*changes[:2], walk, *changes[2:], walk]


@given(histories=st.lists(events, min_size=2, max_size=2))
@example(histories=[[], _both_drop_it_between_two_walks()])
def test_full_walk_yields_the_same_state_after_any_history(histories: list[list[Event]]) -> None:
    """A counts that lived through something and one that begins agree, as soon as both have read everything."""
    lived, truth = ReferenceCounts(), Truth()
    for event in [*histories[0], *histories[1]]:
        step(lived, truth, event)
    readable: Mapping[str, tuple[bytes, NamedLedgers | None]] = {p: n for p, n in truth.nodes.items() if n[1]}
    truth.nodes = dict(readable)
    begun = ReferenceCounts()
    for each in (lived, begun):
        each.walk(pieces_of_ids(truth.ledgers), truth.pieces(frozenset(), breaks=False))
    assert lived.unreferenced().tolist() == begun.unreferenced().tolist()
    assert (lived.references, lived.nodes, lived.ledgers) == (begun.references, begun.nodes, begun.ledgers)
