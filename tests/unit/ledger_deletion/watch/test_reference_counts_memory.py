"""Memory of ledgers and nodes."""

import tracemalloc

import numpy as np
from pulsar_sidecar.features.ledger_deletion.watch.ports import WalkedNode
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import ReferenceCounts
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext

from tests.fakes.bookkeeper import managed_ledger_bytes

TOPIC = "/managed-ledgers/p/n/persistent/a"


def test_a_ledger_takes_few_bytes_and_a_node_a_few_hundred() -> None:
    """10,000 ledgers in 1,000 nodes; ten million in three million nodes have to fit into 2 GB."""
    ledgers, each = 10_000, 10
    pieces = [[WalkedNode(f"{TOPIC}-{n}", _ten_ledgers(n * each))] for n in range(ledgers // each)]
    tracemalloc.start()
    try:
        counts = ReferenceCounts()
        counts.walk(iter([np.arange(ledgers, dtype=np.int64)]), pieces)
        walked, _ = tracemalloc.get_traced_memory()
        for number in range(ledgers, ledgers + ledgers // 4):
            counts.note_existence(LedgerId(number), exists=True)
        counts.unreferenced()
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (counts.ledgers, counts.references) == (ledgers + ledgers // 4, ledgers)
    nodes_bytes = (ledgers // each) * (8 * each + 150)
    assert walked < 12 * ledgers + nodes_bytes
    assert traced - walked < 12 * ledgers // 4


def test_a_copy_in_tiered_storage_takes_32_bytes_more() -> None:
    ledgers, each = 10_000, 10
    places = {"bucket": "pulsar-offload", "region": "eu-west-1", "serviceEndpoint": "https://s3.example:9000"}

    def taken(*, offloaded: bool) -> int:
        pieces = []
        for number in range(ledgers // each):
            ids = range(number * each, (number + 1) * each)
            contexts = {each: OffloadContext(each, -each, "aws-s3", dict(places)) for each in ids if offloaded}
            pieces.append([WalkedNode(f"{TOPIC}-{number}", managed_ledger_bytes(ids, offloaded=contexts))])
        tracemalloc.start()
        try:
            counts = ReferenceCounts()
            counts.walk(iter([np.arange(ledgers, dtype=np.int64)]), pieces)
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    more = (taken(offloaded=True) - taken(offloaded=False)) / ledgers
    assert 32 <= more < 36


def test_a_walk_anew_keeps_no_second_copy_of_paths_and_ids() -> None:
    ledgers, each = 10_000, 10
    counts = ReferenceCounts()
    nodes = [_ten_ledgers(number * each) for number in range(ledgers // each)]

    def walk() -> None:
        pieces = ([WalkedNode(f"{TOPIC}-{number}", data)] for number, data in enumerate(nodes))
        assert counts.walk(iter([np.arange(ledgers, dtype=np.int64)]), pieces) == []

    tracemalloc.start()
    try:
        walk()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        walk()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The ids that exist and those that nodes name, twice for a moment, states, and a hash for each path.
    assert peak - before < 60 * ledgers


def _ten_ledgers(first: int) -> bytes:
    return managed_ledger_bytes(range(first, first + 10))
