"""A partitioned topic's node, read exactly or not at all."""

import pytest
from pulsar_sidecar.ledger_ownership.shadows import partition_count
from pulsar_sidecar.model.errors import UndecodableError


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"partitions":"3"}',
        b'{"partitions":-1}',
        b'{"partitions":true}',
        b"\xff",
        pytest.param(b'{"partitions":' + b"[" * 100_000, id="too deep"),
    ],
)
def test_a_partitioned_topics_node_is_read_exactly_or_not_at_all(data: bytes) -> None:
    with pytest.raises(UndecodableError):
        partition_count(data)
    assert partition_count(b'{"partitions":16,"deleted":false}') == 16
