"""Bundles as brokers compute them; the ranges were read from a 4.0.8 broker's ``lookup/.../bundle``."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_rest.bundles import boundaries_in, boundary_paths, bundle_range, ownership_path
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.metadata import read_nodes
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.metadata import FakeMetadataStore

SIXTEEN = (*(f"0x{number:x}0000000" for number in range(16)), "0xffffffff")


@pytest.mark.parametrize(
    ("local_name", "expected"),
    [
        ("a b", "0xd0000000_0xe0000000"),
        ("a%b", "0xa0000000_0xb0000000"),
        ("a+b", "0x30000000_0x40000000"),
        ("ü€", "0x80000000_0x90000000"),
        ("x;y", "0xe0000000_0xf0000000"),
        ("a", "0xe0000000_0xf0000000"),
        ("b", "0x70000000_0x80000000"),
        ("t1-partition-3", "0xf0000000_0xffffffff"),
    ],
)
def test_ranges_are_those_that_a_broker_names(local_name: str, expected: str) -> None:
    topic = parse_topic_name(f"persistent://public/default/{local_name}")
    assert bundle_range(topic, SIXTEEN) == expected
    assert ownership_path(topic, SIXTEEN) == f"/namespace/public/default/{expected}"


@given(st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=50))
def test_every_topic_has_a_range_of_any_division(local_name: str) -> None:
    if local_name in (".", ".."):
        return
    topic = parse_topic_name(f"persistent://public/default/{local_name}")
    assert bundle_range(topic, ("0x00000000", "0xffffffff")) == "0x00000000_0xffffffff"
    lower, _, upper = bundle_range(topic, SIXTEEN).partition("_")
    halves = bundle_range(topic, ("0x00000000", lower, upper) if lower != "0x00000000" else (lower, upper))
    assert halves.startswith(lower)


def read_boundaries(store: FakeMetadataStore, namespace: str) -> tuple[str, ...] | None:
    return boundaries_in(read_nodes(store, boundary_paths(namespace)), namespace)


def policies(boundaries: list[str]) -> bytes:
    return json.dumps({"bundles": {"boundaries": boundaries, "numBundles": len(boundaries) - 1}}).encode()


def test_local_policies_come_before_the_namespace_s_own() -> None:
    store = FakeMetadataStore()
    assert read_boundaries(store, "t/n") is None
    store.put("/admin/policies/t/n", b"{}")
    assert read_boundaries(store, "t/n") == ("0x00000000", "0xffffffff")
    store.put("/admin/policies/t/n", policies(["0x00000000", "0x7fffffff", "0xffffffff"]))
    assert read_boundaries(store, "t/n") == ("0x00000000", "0x7fffffff", "0xffffffff")
    store.put("/admin/local-policies/t/n", policies(list(SIXTEEN)))
    assert read_boundaries(store, "t/n") == ("0x00000000", *SIXTEEN[1:])


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"bundles": 3}', b'{"bundles": {"boundaries": ["x", "y"]}}'])
def test_bundles_that_cannot_be_read_are_no_bundles(data: bytes) -> None:
    store = FakeMetadataStore()
    store.put("/admin/local-policies/t/n", data)
    with pytest.raises(TemporaryError):
        read_boundaries(store, "t/n")
