"""Memory of a broker's queues, as brokers of 4.0.8 reported it."""

import pytest
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import queue_bytes, queues_of


@pytest.mark.parametrize(
    ("indexes", "size"),
    [(0, 0), (1, 384), (16, 384), (17, 768), (450, 15_552), (50_000, 1_345_032), (200_000, 6_809_192)],
)
def test_a_queue_takes_what_a_broker_reported(indexes: int, size: int) -> None:
    assert queue_bytes(indexes) == size


def test_a_large_queue_grows_by_pieces() -> None:
    piece = 1 << 24
    assert [queue_bytes(piece // 24 * pieces) for pieces in (1, 2, 3)] == [piece, 2 * piece, 3 * piece]
    assert queues_of(3 * piece) is None


@pytest.mark.parametrize(
    ("size", "queues"),
    [
        (384, 1),
        (768, None),
        (3_840, 2),
        (4_608, None),
        (6_144, 2),
        (7_680, 2),
        (15_552, 1),
        (15_560, None),
        (1_345_032, 1),
        (1_345_032 + 384, 2),
    ],
)
def test_queue_count_is_inferred_from_memory_size(size: int, queues: int | None) -> None:
    assert queues_of(size) == queues
