from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.zookeeper.multidelete import Packet, result_by_nodes, take_packet
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, Guard, GuardedDeletion, Node

V0, V1 = NodeVersion(0), NodeVersion(1)

guards = st.builds(Guard, st.sampled_from(["/g1", "/g2", "/g" + "x" * 2_000]), st.sampled_from([V0, V1]))
guarded = st.builds(
    GuardedDeletion,
    st.integers(0, 10**9).map(lambda number: f"/ledgers/{number}"),
    st.just(V0),
    st.lists(guards, max_size=4, unique=True).map(tuple),
)


def pack(deletions: Sequence[GuardedDeletion], most: int = 100) -> list[Packet]:
    items, packets = deque(range(len(deletions))), []
    while items:
        packets.append(take_packet(items, deletions, most))
    return packets


@given(st.lists(guarded, max_size=350), st.integers(1, 150))
def test_packets_hold_every_deletion_once_with_its_guards(deletions: list[GuardedDeletion], most: int) -> None:
    packets = pack(deletions, most)
    assert [item for packet in packets for item in packet.items] == list(range(len(deletions)))
    for packet in packets:
        assert 0 < len(packet.items) <= min(most, 100)
        named = {guard for item in packet.items for guard in deletions[item].guards}
        assert set(packet.guards) == named


def test_a_shared_guard_is_checked_once_per_packet() -> None:
    shared = Guard("/managed-ledgers/t", V1)
    deletions = [GuardedDeletion(f"/ledgers/{number}", V0, (shared,)) for number in range(250)]
    packets = pack(deletions)
    assert [len(packet.items) for packet in packets] == [100, 100, 50]
    assert all(list(packet.guards) == [shared] for packet in packets)


def test_long_paths_make_more_packets() -> None:
    deletions = [GuardedDeletion("/" + "x" * 30_000 + str(number), V0) for number in range(100)]
    packets = pack(deletions)
    assert all(packet.size_bytes <= 256 * 1024 for packet in packets)
    assert len(packets) > 10


def node(path: str, version: NodeVersion) -> Node:
    return Node(path, b"", version, 1, 1, 1)


@pytest.mark.parametrize(
    ("ledger", "guard", "expected"),
    [
        (node("/l", V0), node("/g", V0), None),
        (None, node("/g", V0), DeletionResult.GONE),
        (node("/l", V1), node("/g", V0), DeletionResult.CONFLICT),
        (node("/l", V0), node("/g", V1), DeletionResult.CONFLICT),
        (node("/l", V0), None, DeletionResult.CONFLICT),
        (None, None, DeletionResult.CONFLICT),
    ],
)
def test_a_look_settles_only_what_is_visible(
    ledger: Node | None, guard: Node | None, expected: DeletionResult | None
) -> None:
    deletion = GuardedDeletion("/l", V0, (Guard("/g", V0),))
    assert result_by_nodes(deletion, {"/l": ledger, "/g": guard}) is expected
