"""A shadow is recognised in whatever form its node is kept, and an unreadable node is never taken for an owner's."""

import zlib
from collections.abc import Callable

import pytest
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.shadows import (
    SHADOW_SOURCE,
    managed_ledger_shadow_source,
    partition_count,
    partitioned_topic_shadow_source,
    source_topic,
)

from tests.fakes.bookkeeper import compressed, managed_ledger_bytes

SOURCE = "persistent://public/default/orders"


def test_a_shadow_s_managed_ledger_names_its_source() -> None:
    plain = managed_ledger_bytes([1, 2], properties={"other": "x", SHADOW_SOURCE: SOURCE})
    assert managed_ledger_shadow_source(plain) == SOURCE
    assert managed_ledger_shadow_source(compressed("ZLIB", plain, zlib.compress(plain))) == SOURCE


def test_a_partitioned_shadow_names_its_source() -> None:
    node = b'{"partitions":2,"deleted":false,"properties":{"PULSAR.SHADOW_SOURCE":"%s"}}' % SOURCE.encode()
    assert partitioned_topic_shadow_source(node) == SOURCE


@pytest.mark.parametrize(
    ("reader", "data", "found"),
    [
        (managed_ledger_shadow_source, b"", None),
        (managed_ledger_shadow_source, managed_ledger_bytes([1, 2]), None),
        (managed_ledger_shadow_source, managed_ledger_bytes([1], properties={"k": SOURCE}), None),
        (partitioned_topic_shadow_source, b'{"partitions":2,"deleted":false}', None),
        (partitioned_topic_shadow_source, b'{"partitions":2,"properties":null}', None),
        (partitioned_topic_shadow_source, b'{"partitions":2,"properties":{"owner":"me"}}', None),
        (partition_count, b'{"partitions":16,"deleted":false}', 16),
    ],
)
def test_an_owner_s_nodes_name_no_source(reader: Callable[[bytes], object], data: bytes, found: int | None) -> None:
    assert reader(data) == found


@pytest.mark.parametrize(
    ("reader", "data"),
    [
        (managed_ledger_shadow_source, b"\xff\xff"),
        (partitioned_topic_shadow_source, b'{"partitions":2,"properties":[]}'),
        (partitioned_topic_shadow_source, b'{"partitions":2,"properties":{"PULSAR.SHADOW_SOURCE":7}}'),
        *(
            pytest.param(reader, data, id=f"{reader.__name__} {data[:20]!r}")
            for reader in (partitioned_topic_shadow_source, partition_count)
            for data in (b"", b"{", b"[]", b"null", b"\xff", b'{"partitions":' + b"[" * 100_000)
        ),
        *((partition_count, b'{"partitions":%s}' % number) for number in (b'"3"', b"-1", b"true")),
        (partition_count, b"{}"),
    ],
)
def test_an_unreadable_node_is_not_taken_for_an_owners(reader: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(UndecodableError):
        reader(data)


def test_a_source_is_spelled_as_any_topic() -> None:
    assert source_topic("public/default/orders") == source_topic(SOURCE) == parse_topic_name(SOURCE)
    assert source_topic("half/a-name") is None
