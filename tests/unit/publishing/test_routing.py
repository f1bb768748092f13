"""Keys go where Java sends them; without a key the sequence id decides, evenly."""

from collections import Counter

import pytest
from pulsar_sidecar.features.publishing.messages import OutgoingMessage
from pulsar_sidecar.features.publishing.routing import HashingScheme, murmur3_32_hash, router
from pulsar_sidecar.model.java_strings import java_string_hash


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("", 0),
        ("hello", 0x248BFA47),
        ("hello, world", 0x149BBB7F),
        ("The quick brown fox jumps over the lazy dog", 0x2E4FF723),
        ("test", 0xBA6BD213 & 0x7FFFFFFF),
    ],
)
def test_murmur3_as_published_without_its_sign(key: str, number: int) -> None:
    assert murmur3_32_hash(key) == number


@pytest.mark.parametrize("scheme", HashingScheme)
def test_a_key_overrides_the_number(scheme: HashingScheme) -> None:
    partition_of = router(7, scheme)
    message = OutgoingMessage(b"", 1, "abc")
    wanted = {HashingScheme.JAVA_STRING_HASH: java_string_hash, HashingScheme.MURMUR3_32_HASH: murmur3_32_hash}
    assert {partition_of(message, number) for number in range(20)} == {wanted[scheme]("abc") % 7}


@pytest.mark.parametrize("step", [1, 3, 64, 100, 4096])
@pytest.mark.parametrize("partitions", [2, 3, 4, 16])
def test_records_of_any_length_spread_over_the_partitions(partitions: int, step: int) -> None:
    partition_of = router(partitions, HashingScheme.JAVA_STRING_HASH)
    found = Counter(partition_of(OutgoingMessage(b""), number * step) for number in range(8_000))
    assert len(found) == partitions
    assert max(found.values()) < 1.5 * 8_000 / partitions
