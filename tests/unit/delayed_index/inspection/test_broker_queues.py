"""What a broker's queues take, as brokers of 4.0.8 reported."""

import pytest
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import Queues, queue_bytes, queues_of


@pytest.mark.parametrize(
    ("indexes", "size"),
    [(0, 0), (1, 384), (16, 384), (17, 768), (450, 15_552), (50_000, 1_345_032), (200_000, 6_809_192)],
)
def test_a_queue_takes_what_a_broker_reported(indexes: int, size: int) -> None:
    assert queue_bytes(indexes) == size


def test_a_large_queue_grows_by_pieces() -> None:
    piece = 1 << 24
    assert [queue_bytes(piece // 24 * pieces) for pieces in (1, 2, 3)] == [piece, 2 * piece, 3 * piece]
    assert queues_of(3 * piece) is Queues.UNKNOWN


@pytest.mark.parametrize(
    ("size", "queues"),
    [
        (384, Queues.ONE),
        (768, Queues.UNKNOWN),
        (3_840, Queues.TWO),
        (4_608, Queues.UNKNOWN),
        (6_144, Queues.TWO),
        (7_680, Queues.TWO),
        (15_552, Queues.ONE),
        (15_560, Queues.UNKNOWN),
        (1_345_032, Queues.ONE),
        (1_345_032 + 384, Queues.TWO),
    ],
)
def test_queue_count_is_inferred_from_memory_size(size: int, queues: Queues) -> None:
    assert queues_of(size) is queues
