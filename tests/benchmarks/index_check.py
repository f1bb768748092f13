"""Checking the segments of delayed indexes against entry 0, without the reading from bookies.

One processor: decoding entry 0 and each segment, and comparing them.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
from pulsar_sidecar.features.delayed_index.maintenance.fsck import contradictions
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)

from tests.reporting import Table

NAME = "index_check"
_FIRST_DUE_MS = 1_700_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--indexes", type=int, default=1_000_000, help="of one subscription")
    parser.add_argument("--segment", type=int, default=5_000, help="indexes in a segment")
    parser.add_argument("--ledgers", type=int, default=8, help="that each segment has indexes of")
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    segments = _segments(arguments)
    metadata = encode_metadata(map(segment_metadata_of, segments))
    payloads = [encode_segment(segment) for segment in segments]
    rates = [arguments.indexes / _seconds(metadata, payloads) for _ in range(arguments.rounds + 1)][1:]
    row = (f"{statistics.median(rates):,.0f}", f"{min(rates):,.0f}", f"{max(rates):,.0f}")
    title = f"{arguments.indexes:,} indexes in segments of {arguments.segment:,}, {arguments.ledgers} ledgers each"
    return [Table(title, ("indexes/s", "least", "most"), [row], ["Processor time of one thread, medians."])]


def _segments(arguments: argparse.Namespace) -> list[DelayedIndexes]:
    numbers = np.arange(arguments.indexes, dtype=np.int64)
    per_ledger = -(-arguments.indexes // arguments.ledgers)
    order = np.random.default_rng(1).permutation(arguments.indexes)
    shuffled = DelayedIndexes(
        _FIRST_DUE_MS + numbers, (10 + numbers // per_ledger)[order], (numbers % per_ledger)[order]
    )
    starts = range(0, arguments.indexes, arguments.segment)
    return [shuffled[start : start + arguments.segment] for start in starts]


def _seconds(metadata: bytes, payloads: Sequence[bytes]) -> float:
    begin = time.thread_time_ns()
    for expected, payload in zip(decode_metadata(metadata), payloads, strict=True):
        if contradictions(expected, decode_segment(payload)):
            raise RuntimeError("a sound segment is not found sound; the figures are worthless")
    return (time.thread_time_ns() - begin) / 1e9
