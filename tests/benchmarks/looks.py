"""Cost of checking very many open cancellations on the sidecar that tracks them, without brokers or bookies.

Every few seconds it reads the subscription's cursor from a broker and compares. While the cursor still holds all
that it held, only news and what is over is compared; once something may have been lost, everything is.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

from pulsar_sidecar.backlog.ports import DelayPolicy
from pulsar_sidecar.features.delayed_messages.cancel.cancellation_index import CancellationIndex
from pulsar_sidecar.features.delayed_messages.cancel.reconcile import (
    decide_actions,
    last_due_of_interest_ms,
    next_visit_ms,
)
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges

from tests.fakes.positions import with_positions
from tests.reporting import Table

NAME = "looks"
_TOPIC = parse_topic_name("persistent://public/default/orders")
_PLACE = (_TOPIC, "workers")
_LEDGER = LedgerId(812)
_NOW_MS = 1_800_000_000_000
_POLICY = DelayPolicy()
_RANGES = 5_000
_EVERY_MS = 10_000
_HORIZON_MS = 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--open", type=int, default=1_000_000, help="open cancellations, due within the next hour")
    parser.add_argument("--rounds", type=int, default=5)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    count = arguments.open
    length = max(1, count // _RANGES)
    firsts = range(length, 2 * count, 2 * length)
    ranges = [EntryRange(_LEDGER, EntryId(first), EntryId(first + length - 1)) for first in firsts]
    before = PositionRanges(Position(_LEDGER, EntryId(-1)), ranges)
    now = with_positions(before, [Position(_LEDGER, EntryId(0))])
    positions = [Position(_LEDGER, EntryId(entry)) for found in ranges for entry in range(found.first, found.last + 1)]
    step_ms = _HORIZON_MS / len(positions)
    index = CancellationIndex()
    index.learn_all(
        Cancellation(
            _TOPIC,
            "workers",
            position,
            _NOW_MS + _EVERY_MS + int(index * step_ms),
            _NOW_MS,
            CancellationStatus.PERSISTED,
        )
        for index, position in enumerate(positions)
    )
    index.changed_at(_PLACE)

    def everything() -> None:
        decide_actions(index.at(_PLACE), now, _POLICY, _NOW_MS)

    def news() -> None:
        assert now.holds_all_of(before)
        changed = index.changed_at(_PLACE)
        assert changed is not None
        decide_actions([*changed, *index.expired_at(_PLACE, _POLICY.expired_before_ms(_NOW_MS))], now, _POLICY, _NOW_MS)
        dues_ms = index.dues_at(_PLACE, last_due_of_interest_ms(_POLICY, _NOW_MS, _EVERY_MS))
        next_visit_ms(dues_ms, _POLICY, _NOW_MS, _EVERY_MS)

    rows = [
        ("everything, as after a loss", _median_ms(everything, arguments.rounds)),
        ("news, while the cursor holds what it held", _median_ms(news, arguments.rounds)),
    ]
    return [Table(f"A look at {len(positions):,} open cancellations in {len(ranges):,} ranges", ("", "median"), rows)]


def _median_ms(look: Callable[[], None], rounds: int) -> str:
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        look()
        found.append((time.perf_counter() - begin) * 1000)
    return f"{statistics.median(found):.1f} ms"
