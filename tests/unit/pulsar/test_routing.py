"""Keys go where a Java producer would send them."""

from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_client.publisher import partition_of


@given(st.text(min_size=1), st.integers(1, 64))
def test_a_key_has_one_partition_of_those_there_are(key: str, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_without_a_key_everything_goes_to_the_first() -> None:
    assert partition_of(None, 4) == partition_of("", 4) == 0
