"""Which shadows an index names for a source, and whose deletion a node that cannot be read holds up."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.topic_deletion.known_shadows import KnownShadows
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, source_topic

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.metadata import FakeMetadataStore

SOURCES = [parse_topic_name(name) for name in ("persistent://a/b/orders", "persistent://a/b/invoices")]
PATHS = [managed_ledger_path(parse_topic_name(f"persistent://c/d/{name}").managed_ledger_name) for name in "xyz"]
DATA = [
    None,
    b"",
    managed_ledger_bytes([1]),
    managed_ledger_bytes([], properties={SHADOW_SOURCE: "a/b/orders"}),
    managed_ledger_bytes([], properties={SHADOW_SOURCE: "persistent://a/b/invoices"}),
    managed_ledger_bytes([], properties={SHADOW_SOURCE: "no://topic"}),
    b"\x47\x78\x00",
]


def node(path: str, data: bytes) -> Node:
    return FakeMetadataStore().put(path, data)


@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(DATA))))
def test_only_the_last_reading_counts(readings: list[tuple[str, bytes | None]]) -> None:
    known, expected = KnownShadows(), KnownShadows()
    for path, data in readings:
        known.note(path, None if data is None else node(path, data))
    for path, data in dict(readings).items():
        expected.note(path, None if data is None else node(path, data))
    assert known == expected
    for source in SOURCES:
        shadows = [each for each in known.shadows.values() if source_topic(each.source) == source]
        assert sorted(known.of({source}), key=str) == sorted(shadows, key=str)


DAMAGED = b"\x47\x78\x00"
NEWER = managed_ledger_bytes([], properties={SHADOW_SOURCE: "persistent://a/b/orders"}) + b"\xfa\x3f\x01x"
WRAPPED_BY_NEWER = b"\x47\x78\x00\x00\x00\x06\x08\x00\x10\x00\x18\x01"
TRUNCATED = json.dumps({"properties": {SHADOW_SOURCE: "persistent://a/b/bestellungen-ä"}}).encode()[:-1]
ORDERS, INVOICES, OF_D = "persistent://a/b/orders", "persistent://a/b/invoices", "persistent://c/d/other"
UMLAUT = "persistent://a/b/bestellungen-ä"


@pytest.mark.parametrize(
    ("data", "held_up", "not_held_up"),
    [
        (DAMAGED, [OF_D], [ORDERS, INVOICES]),
        (NEWER, [ORDERS, f"{ORDERS}-partition-3", OF_D], [INVOICES]),
        (WRAPPED_BY_NEWER, [ORDERS, INVOICES, OF_D], []),
        (TRUNCATED, [UMLAUT, OF_D], [ORDERS]),
    ],
)
def test_whom_a_node_that_cannot_be_read_holds_up(data: bytes, held_up: list[str], not_held_up: list[str]) -> None:
    topic = parse_topic_name("persistent://c/d/strange")
    path = partitioned_topic_path(topic) if data is TRUNCATED else managed_ledger_path(topic.managed_ledger_name)
    known = KnownShadows()
    known.note(path, node(path, data))
    for name in held_up:
        with pytest.raises(UndecodableError, match="strange cannot be read, so it may be a shadow's"):
            known.of({parse_topic_name(name)})
    for name in not_held_up:
        assert known.of({parse_topic_name(name)}) == []
    assert list(known.unread) == [path]


def test_a_shadow_that_is_known_goes_before_a_node_that_cannot_be_read() -> None:
    known = KnownShadows()
    for path, data in zip(PATHS, (DATA[3], b"\x47\x78\x00"), strict=False):
        known.note(path, node(path, data or b""))
    beside = parse_topic_name("persistent://c/d/other")
    assert [str(shadow.topic) for shadow in known.of({SOURCES[0], beside})] == ["persistent://c/d/x"]
