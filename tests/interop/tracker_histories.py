"""Random histories of a tracker of delayed messages, as the lines that ``BucketTracker.java`` takes.

Invariant: a seed makes the same history on every machine.
"""

import base64
import random
from collections.abc import Iterator

from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    encode_metadata,
    encode_segment,
    segment_metadata_of,
)

_ALL = 1_000
_ALWAYS = 100_000
_LATE_ENTRIES = 10_000
_FAR_MS = 1_000_000
_STEPS = 60


def history(seed: int) -> list[str]:
    """Return a history; every third has failures, foreign buckets, lost ledgers and settings that break brokers."""
    return list(_History(random.Random(seed), wild=seed % 3 == 0).commands())


def put_command(start: int, end: int, *segments: list[tuple[int, int, int]]) -> str:
    """Return the line that gives a tracker a bucket which it has not written; rows are due time, ledger and entry."""
    columns = [DelayedIndexes.of(rows) for rows in segments]
    entries = [encode_metadata(map(segment_metadata_of, columns)), *map(encode_segment, columns)]
    return " ".join(["put", str(start), str(end), *(base64.b64encode(entry).decode() for entry in entries)])


class _History:
    def __init__(self, rng: random.Random, *, wild: bool) -> None:
        self._rng = rng
        self._wild = wild
        self._now_ms = 0
        self._ledger = rng.randint(0, 5)
        self._entry = 0
        self._sent: list[tuple[int, int, int]] = []

    def commands(self) -> Iterator[str]:
        rng = self._rng
        max_buckets = rng.choice([-1, 4, 4, 5, 6, *([1, 3] if self._wild else [])])
        words = [rng.randint(1, 8), rng.choice([1, 5, 20, 1000]), rng.choice([-1, 1, 1, 2, 3, 5]), max_buckets]
        yield f"new {' '.join(map(str, words))} {rng.choice([1, 10, 50])} {rng.choice(['strict', 'lax'])}"
        steps = [self._send, self._send, self._send, self._send, self._move_on, self._pop, self._look, self._late]
        rare = [self._again, self._recover, self._recover, self._clear]
        wild = [self._fail, self._lose, self._elsewhere] if self._wild else []
        for _ in range(rng.randint(10, _STEPS)):
            yield from rng.choice(steps if rng.random() < 0.9 else rare + wild)()
        yield from self._drain()

    def _send(self) -> Iterator[str]:
        rng = self._rng
        for _ in range(rng.randint(1, 6)):
            if rng.random() < 0.25:
                self._ledger += rng.randint(1, 3)
                self._entry = 0
            delay = rng.choice([-1, 0, 30, 100, 100, rng.randint(1, 50), rng.randint(1, 500), rng.randint(1, 500)])
            yield self._add(self._ledger, self._entry, self._now_ms + delay)
            self._entry += rng.randint(1, 2)

    def _late(self) -> Iterator[str]:
        ledger = max(0, self._ledger - self._rng.randint(0, 12))
        yield self._add(ledger, _LATE_ENTRIES + len(self._sent), self._now_ms + self._rng.randint(1, 500))

    def _again(self) -> Iterator[str]:
        for sent in self._rng.sample(self._sent, min(3, len(self._sent))):
            yield f"add {' '.join(map(str, sent))}"

    def _move_on(self) -> Iterator[str]:
        self._now_ms += self._rng.randint(0, 80)
        yield f"now {self._now_ms}"
        if self._rng.random() < 0.3:
            yield "tick"

    def _pop(self) -> Iterator[str]:
        yield f"pop {self._rng.choice([0, 1, 2, 5, 10, _ALL])}"

    def _look(self) -> Iterator[str]:
        yield from ("has", "count")
        if self._sent:
            ledger, entry, _ = self._rng.choice(self._sent)
            yield f"contains {ledger} {entry}"
        if self._rng.random() < 0.3:
            yield "dump"

    def _recover(self) -> Iterator[str]:
        # The dispatcher reads on from the mark-delete position, which is somewhere before what is due.
        yield from ("dump", f"rotate {self._rng.randint(0, 5)}", "recover", "dump")
        if self._rng.random() < 0.8:
            first = self._rng.randint(0, len(self._sent))
            for sent in self._sent[first:]:
                yield f"add {' '.join(map(str, sent))}"
            yield "dump"

    def _clear(self) -> Iterator[str]:
        yield from ("clear", "dump")

    def _fail(self) -> Iterator[str]:
        operation = self._rng.choice(["create", "create", "segment", "segment", "metadata", "delete"])
        if self._rng.random() < 0.5:
            yield f"fail {operation} {self._rng.choice([1, 3])}"
            return
        yield f"fail {operation} {_ALWAYS}"
        for _ in range(self._rng.randint(1, 6)):
            yield from self._rng.choice([self._send, self._send, self._move_on, self._pop, self._recover])()
        yield f"fail {operation} 0"

    def _lose(self) -> Iterator[str]:
        yield f"lose {self._rng.randint(0, 5)}"

    def _elsewhere(self) -> Iterator[str]:
        start = max(0, self._ledger - self._rng.randint(0, 15))
        end = start + self._rng.randint(0, 8)
        segments, due = [], self._now_ms
        for _ in range(self._rng.randint(1, 3)):
            rows = {(self._rng.randint(start, end), 100 + self._rng.randint(0, 20)) for _ in range(3)}
            due += self._rng.randint(1, 100)
            segments.append(sorted((due, *row) for row in rows))
        yield put_command(start, end, *segments)
        yield from self._recover()

    def _drain(self) -> Iterator[str]:
        yield "dump"
        for _ in range(4):
            self._now_ms += self._rng.choice([100, 300])
            yield from (f"now {self._now_ms}", f"pop {self._rng.choice([3, 10])}", "dump")
        yield from (f"now {self._now_ms + _FAR_MS}", f"pop {_ALL}", f"pop {_ALL}", "has", "count", "dump")

    def _add(self, ledger: int, entry: int, deliver_at_ms: int) -> str:
        self._sent.append((ledger, entry, deliver_at_ms))
        return f"add {ledger} {entry} {deliver_at_ms}"
