"""Operators' controls of the watch: stored by compare-and-set; an unreadable node appends nothing."""

import json
from collections.abc import Callable

import msgspec
import pytest
from pulsar_sidecar.features.ledger_deletion.watch.control import CONTROL, WatchControl, WatchControlNode, parse_hold
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders-partition-3")


@pytest.fixture
def node(store: FakeMetadataStore) -> WatchControlNode:
    return WatchControlNode(store)


# --- holds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("7", "7"),
        ("007", "007"),
        ("0", "0"),
        (str(2**63 - 1), str(2**63 - 1)),
        ("public", "public"),
        ("public/default", "public/default"),
        ("persistent://public/default/orders", "persistent://public/default/orders"),
        ("persistent://public/default/orders-partition-3", "persistent://public/default/orders-partition-3"),
        ("persistent://t/c/n/orders", "persistent://t/c/n/orders"),
    ],
)
def test_valid_holds_are_parsed(text: str, kept: str) -> None:
    assert parse_hold(text) == kept


@pytest.mark.parametrize(
    "text",
    ["", "/", "a/", "/a", "a/b/c", "a b", "a/b c", "a\n", "public/default/orders", "persistent://", "x://a/b/c"],
)
def test_invalid_holds_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_hold(text)


def test_a_long_text_is_refused_shortly() -> None:
    with pytest.raises(InvalidInputError, match=r"^'x{100}' cannot be held: give a ledger id, a tenant, a namespace"):
        parse_hold("x" * 101 + " ")


@pytest.mark.parametrize("digits", [19, 20, 5_000])
def test_digits_beyond_any_ledgers_id_are_no_ledger(digits: int) -> None:
    """Digits may be a tenant's name, and Python does not parse numbers of any length."""
    assert parse_hold("9" * digits) == str("9" * digits)


@pytest.mark.parametrize(
    ("hold", "falls_under"),
    [
        ("7", True),
        ("8", False),
        ("public", True),
        ("publi", False),
        ("default", False),
        ("public/default", True),
        ("public/other", False),
        ("persistent://public/default/orders", True),
        ("persistent://public/default/orders-partition-3", True),
        ("persistent://public/default/orders-partition-2", False),
        ("persistent://public/default/order", False),
    ],
)
def test_ledger_falls_under_matching_holds(hold: str, falls_under: bool) -> None:
    control = WatchControl(holds=("another", hold, "more"))
    assert control.holds_ledger(LedgerId(7), TOPIC) == (hold if falls_under else None)


@pytest.mark.parametrize(
    ("ledger_id", "tenant", "falls_under"), [(7, "public", True), (8, "007", True), (8, "7", False)]
)
def test_digits_hold_the_ledger_and_the_tenant(ledger_id: int, tenant: str, falls_under: bool) -> None:
    """A tenant may be called so; kept as a number, its name would hold nothing."""
    control = WatchControl(holds=(parse_hold("007"),))
    topic = parse_topic_name(f"persistent://{tenant}/default/orders")
    assert control.holds_ledger(LedgerId(ledger_id), topic) == ("007" if falls_under else None)


def test_the_first_hold_is_reported() -> None:
    assert WatchControl(holds=("public", "7")).holds_ledger(LedgerId(7), TOPIC) == "public"
    assert WatchControl().holds_ledger(LedgerId(7), TOPIC) is None


def test_holds_are_kept_sorted_and_once(node: WatchControlNode) -> None:
    for item in ("public", "9", "public", "9"):
        node.hold(item)
    assert node.read() == WatchControl(None, ("9", "public"))
    assert node.release_hold("9") == node.read() == WatchControl(None, ("public",))


def test_a_hold_that_is_not_there_cannot_be_taken_back(node: WatchControlNode) -> None:
    with pytest.raises(
        NotFoundError, match="public is not on the hold list; see pulsar-sidecar ledger-deletion watch hold list"
    ):
        node.release_hold("public")
    node.hold("9")
    with pytest.raises(NotFoundError):
        node.release_hold("public")
    assert node.read().holds == ("9",)


@pytest.mark.parametrize("verb", ["hold", "release_hold"])
def test_invalid_hold_changes_nothing(node: WatchControlNode, store: FakeMetadataStore, verb: str) -> None:
    with pytest.raises(InvalidInputError):
        getattr(node, verb)("a b")
    assert store.peek(CONTROL) is None


# --- the node --------------------------------------------------------------------------------------------------------


def test_at_first_nothing_is_held_and_nothing_brakes(node: WatchControlNode) -> None:
    assert node.read() == WatchControl(None, ())


def test_the_first_reason_stays_until_an_operator_resumes(node: WatchControlNode, store: FakeMetadataStore) -> None:
    node.hold("public")
    assert node.brake("first").braked == "first"
    assert node.brake("second").braked == "first"
    found = store.peek(CONTROL)
    assert json.loads(found.data) == {"braked": "first", "holds": ["public"], "resumedMs": 0}
    assert node.resume() == node.read() == WatchControl(None, ("public",), store.now_ms())
    assert node.brake("third").braked == "third"


def test_a_change_that_changes_nothing_writes_nothing(node: WatchControlNode, store: FakeMetadataStore) -> None:
    node.hold("public")
    node.hold("public")
    node.brake("why")
    before = store.peek(CONTROL)
    node.brake("another")
    assert store.peek(CONTROL) == before


CHANGES: dict[str, Callable[[WatchControlNode], WatchControl]] = {
    "brake": lambda node: node.brake("why"),
    "resume": lambda node: node.resume(),
    "hold": lambda node: node.hold("8"),
    "release_hold": lambda node: node.release_hold("7"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_rivals_change_is_kept(node: WatchControlNode, store: FakeMetadataStore, change: str) -> None:
    node.hold("7")
    node.brake("before")
    rival = WatchControlNode(store.other_session())
    store.before("write", lambda: rival.hold("mine"))
    changed = CHANGES[change](node)
    if change == "brake":  # which was there already, so nothing was written
        rival.hold("mine")
    assert "mine" in node.read().holds
    assert change == "brake" or changed == node.read()


UNREADABLE = {
    "nothing": b"",
    "no JSON": b"{",
    "another shape": b"[]",
    "another type": b'{"holds":"public"}',
    "an unknown field": b'{"braked":null,"holds":[],"rate":5}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_node_that_cannot_be_read_brakes_and_is_not_overwritten(
    node: WatchControlNode, store: FakeMetadataStore, kind: str
) -> None:
    store.put(CONTROL, UNREADABLE[kind])
    control = node.read()
    assert control.braked == (
        f"{CONTROL} is not readable; delete it, set the holds again, then: pulsar-sidecar ledger-deletion watch resume"
    )
    assert control.holds == ()
    for change in CHANGES.values():
        with pytest.raises(ConflictError, match="is not readable; delete it"):
            change(node)
    assert store.peek(CONTROL).data == UNREADABLE[kind]


def test_unreachable_store_is_not_an_empty_node(node: WatchControlNode, store: FakeMetadataStore) -> None:
    store.fail_next("read", TemporaryError("ZooKeeper is away"), times=2)
    with pytest.raises(TemporaryError):
        node.read()
    with pytest.raises(TemporaryError):
        node.hold("7")


# --- only `resume` releases the brake --------------------------------------------------------------------------------


def test_each_resuming_is_later_than_the_one_before(node: WatchControlNode, store: FakeMetadataStore) -> None:
    """Also where the store's clock was set back."""
    first = node.resume().resumed_ms
    assert first == store.now_ms()
    assert node.resume().resumed_ms == first + 1
    store.advance_ms(500)
    assert node.resume().resumed_ms == first + 500


BRAKED = WatchControl("why", ("public",), 5)


def test_a_watch_follows_what_operators_order(node: WatchControlNode, store: FakeMetadataStore) -> None:
    assert node.follow(WatchControl()) == WatchControl()
    assert store.peek(CONTROL) is None
    node.hold("public")
    known = node.follow(WatchControl())
    assert known == WatchControl(None, ("public",))
    node.brake("why")
    known = node.follow(known)
    assert known == WatchControl("why", ("public",))
    node.release_hold("public")
    resumed = node.resume()
    before = store.peek(CONTROL)
    assert node.follow(known) == resumed == WatchControl(None, (), store.now_ms())
    assert store.peek(CONTROL) == before


def test_a_node_that_vanished_is_written_again(node: WatchControlNode, store: FakeMetadataStore) -> None:
    assert node.follow(BRAKED) == node.read() == BRAKED
    assert node.resume().braked is None


@pytest.mark.parametrize("resumed_ms", [0, 4, 5])
def test_an_old_copy_of_the_node_does_not_release(
    node: WatchControlNode, store: FakeMetadataStore, resumed_ms: int
) -> None:
    store.put(CONTROL, msgspec.json.encode(WatchControl(None, ("other",), resumed_ms)))
    assert node.follow(BRAKED) == node.read() == WatchControl("why", ("other",), resumed_ms)


def test_a_node_that_is_not_readable_keeps_what_is_known(node: WatchControlNode, store: FakeMetadataStore) -> None:
    store.put(CONTROL, b"?")
    assert node.follow(BRAKED) == BRAKED
    known = node.follow(WatchControl(None, ("public",), 5))
    assert (known.braked, known.holds, known.resumed_ms) == (node.read().braked, ("public",), 5)
    assert store.peek(CONTROL) is not None
    store.remove(CONTROL)
    assert node.follow(known) == node.read() == known
    assert node.resume() == WatchControl(None, ("public",), store.now_ms())


def test_a_rivals_order_is_not_written_over(node: WatchControlNode, store: FakeMetadataStore) -> None:
    rival = WatchControlNode(store.other_session())
    store.before("create", rival.resume)
    with pytest.raises(AlreadyExistsError):
        node.follow(BRAKED)
    store.put(CONTROL, b"{}")
    store.before("write", rival.resume)
    with pytest.raises(ConflictError):
        node.follow(BRAKED)
    assert node.follow(BRAKED) == rival.read()
    assert rival.read().braked is None
