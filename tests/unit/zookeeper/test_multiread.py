"""The multi-read's bytes and how the size of its packets is chosen; the real server is met in the contract suite."""

import contextlib
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.zookeeper.multiread import (
    GET_DATA,
    MultiOperations,
    PacketSize,
    Refused,
    data_starts,
    decode,
    decoded,
    parse_node,
)
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import Node

NO_NODE, NO_AUTH = -101, -102

longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    return Node(
        path=draw(st.text(alphabet="abc/", min_size=1, max_size=8)),
        data=draw(st.binary(max_size=40)),
        version=NodeVersion(draw(ints)),
        created_ms=draw(longs),
        modified_ms=draw(longs),
        created_order=draw(longs),
        children_count=draw(ints),
        ephemeral=draw(st.booleans()),
    )


def encoded_node(node: Node) -> bytes:
    """Encode like ``GetDataResult`` in ZooKeeper's ``MultiResponse``: a header, the data, the stat."""
    stat = struct.pack(
        "!qqqqiiiqiiq",
        node.created_order,
        7,
        node.created_ms,
        node.modified_ms,
        node.version,
        3,
        2,
        81 if node.ephemeral else 0,
        len(node.data),
        node.children_count,
        9,
    )
    return struct.pack("!iBi", 4, 0, 0) + struct.pack("!i", len(node.data)) + node.data + stat


def encoded_error(code: int) -> bytes:
    return struct.pack("!iBi", -1, 0, code) + struct.pack("!i", code)


END = struct.pack("!iBi", -1, 1, -1)
results = st.lists(st.none() | nodes(), max_size=6)


def encoded(found: list[Node | None]) -> bytes:
    return b"".join(encoded_error(NO_NODE) if node is None else encoded_node(node) for node in found) + END


def paths_of(found: list[Node | None]) -> list[str]:
    return ["/none" if node is None else node.path for node in found]


@given(results)
def test_an_answer_is_decoded_in_order(found: list[Node | None]) -> None:
    assert decode(encoded(found), paths_of(found)) == found


@given(results, st.data())
def test_a_truncated_answer_is_an_error(found: list[Node | None], data: st.DataObject) -> None:
    answer = encoded(found)
    cut = data.draw(st.integers(0, len(answer) - 1))
    with pytest.raises(TemporaryError):
        decode(answer[:cut], paths_of(found))


@given(results, st.sampled_from([-1, 1]))
def test_an_answer_to_another_number_of_paths_is_an_error(found: list[Node | None], difference: int) -> None:
    paths = [*paths_of(found), "/more"] if difference > 0 else paths_of(found)[:-1]
    if len(paths) == len(found):
        return
    with pytest.raises(TemporaryError):
        decode(encoded(found), paths)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_nonsense_is_an_error_or_exactly_what_was_asked(noise: bytes, count: int) -> None:
    with contextlib.suppress(TemporaryError):
        assert len(decode(noise, ["/a"] * count)) == count


def starts_by_decoding(answer: bytes, count: int) -> list[int] | None:
    try:
        found = decoded(answer, count, parse_node)
    except TemporaryError:
        return None
    starts = [each.start for each in found if not isinstance(each, Refused)]
    return starts if len(starts) == count else None


def starts_in_bulk(answer: bytes, count: int) -> list[int] | None:
    starts = data_starts(answer, count)
    return None if starts is None else starts[:-1]


@given(st.lists(nodes(), max_size=6) | results, st.integers(-1, 1), st.data())
def test_starts_are_found_in_bulk_where_decoding_finds_them(
    found: list[Node | None], difference: int, data: st.DataObject
) -> None:
    answer, count = encoded(found), max(0, len(found) + difference)
    assert starts_in_bulk(answer, count) == starts_by_decoding(answer, count)
    cut = answer[: data.draw(st.integers(0, len(answer) - 1))]
    assert starts_in_bulk(cut, len(found)) is None


@given(st.binary(max_size=200), st.integers(0, 3))
def test_nonsense_has_no_starts_that_decoding_does_not_find(noise: bytes, count: int) -> None:
    assert starts_in_bulk(noise, count) == starts_by_decoding(noise, count)


@pytest.mark.parametrize("code", [NO_AUTH, -4, -2, 0, -127, -9999])
def test_only_no_node_means_absent(code: int) -> None:
    with pytest.raises(TemporaryError, match="/a"):
        decode(encoded_error(code) + END, ["/a"])


def test_a_node_without_data_has_no_bytes() -> None:
    """ZooKeeper marks null data by the length -1."""
    answer = struct.pack("!iBii", 4, 0, 0, -1) + struct.pack("!qqqqiiiqiiq", 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 1) + END
    assert decode(answer, ["/a"]) == [Node("/a", b"", NodeVersion(0), 2, 2, 1)]


def test_the_request_as_zookeeper_reads_it() -> None:
    """Same bytes as ``MultiOperationRecord`` of ``Op.getData``: per path a header, the path, no watch; then the end."""
    request = MultiOperations(((GET_DATA, "/ä".encode()), (GET_DATA, b"/b")))
    expected = b"".join(
        struct.pack("!iBi", 4, 0, -1) + struct.pack("!i", len(path)) + path + b"\x00" for path in ("/ä".encode(), b"/b")
    )
    assert request.type == 22
    assert bytes(request.serialize()) == expected + END
    assert "/b" not in repr(request)


SMALL, LARGE = 220, 1_000_000


def grown() -> PacketSize:
    size = PacketSize()
    for _ in range(8):
        teach(size, size.take(LEDGERS, 0), SMALL)
    return size


def teach(size: PacketSize, packet: Sequence[str], data_bytes: int) -> None:
    size.learn(packet, [data_bytes] * len(packet))


LEDGERS = [f"/ledgers/00/0000/L{number:04d}" for number in range(1_000)]
TOPICS = [f"/managed-ledgers/t/n/persistent/{number}" for number in range(1_000)]


def test_packets_begin_small_and_grow_on_small_nodes() -> None:
    size, asked = PacketSize(), []
    for _ in range(8):
        packet = size.take(LEDGERS, 0)
        asked.append(len(packet))
        teach(size, packet, SMALL)
    assert asked[0] <= 4
    assert asked == sorted(asked)
    assert asked[-1] == 500
    assert size.in_flight == 8


def test_nodes_of_a_kind_not_met_yet_are_suspected_to_be_large() -> None:
    size = grown()
    assert len(size.take(LEDGERS, 0)) == 500
    assert len(size.take(TOPICS, 0)) <= 4
    assert len(size.take([*LEDGERS[:50], *TOPICS], 0)) < 55


def test_nodes_that_are_not_there_teach_that_their_kind_is_small() -> None:
    size = PacketSize()
    for _ in range(8):
        packet = size.take(LEDGERS, 0)
        size.learn(packet, [0] * len(packet))
    assert len(size.take(LEDGERS, 0)) == 500


def test_large_node_shrinks_the_next_packet_of_its_kind() -> None:
    size = grown()
    packet = size.take(LEDGERS, 0)
    size.learn(packet, [LARGE, *[0] * (len(packet) - 1)])
    assert len(size.take(LEDGERS, 0)) == 1


def test_a_lost_answer_makes_packets_smaller_down_to_one_node() -> None:
    size = grown()
    size.shrink()
    assert len(size.take(LEDGERS, 0)) == 125
    assert size.in_flight == 1
    for _ in range(10):
        size.shrink()
    assert len(size.take(LEDGERS, 0)) == 1
    for _ in range(10):
        teach(size, size.take(LEDGERS, 0), SMALL)
    assert len(size.take(LEDGERS, 0)) == 500


def request_bytes(packet: Sequence[str]) -> int:
    return len(MultiOperations(tuple((GET_DATA, path.encode()) for path in packet)).serialize())


@given(st.lists(st.integers(1, 30_000), min_size=1, max_size=60))
def test_packets_cover_all_paths_and_stay_within_a_request(lengths: list[int]) -> None:
    paths, size, start = ["/" + "x" * length for length in lengths], grown(), 0
    while start < len(paths):
        packet = size.take(paths, start)
        assert packet == paths[start : start + len(packet)]
        assert packet
        assert len(packet) == 1 or request_bytes(packet) < 300_000
        size.learn(packet, [0] * len(packet))
        start += len(packet)
