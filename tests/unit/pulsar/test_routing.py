"""Keys go where a Java producer would send them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar.client.publisher import java_string_hash, partition_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0), ("ü€", 16176), ("\U0001f600", 1772899)],
)
def test_hashes_are_java_s(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


@given(st.text(min_size=1), st.integers(1, 64))
def test_a_key_has_one_partition_of_those_there_are(key: str, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_without_a_key_everything_goes_to_the_first() -> None:
    assert partition_of(None, 4) == partition_of("", 4) == 0
