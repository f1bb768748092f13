"""What each topic comes to, from sums that either engine makes of several tables."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from pulsar_sidecar.deduplication.verifying.duplicates.row_groups import starts_of
from pulsar_sidecar.deduplication.verifying.duplicates.tables import TOPICS
from pulsar_sidecar.deduplication.verifying.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError

SUMMED: Final = (
    "rows",
    "markers",
    "counted",
    "messages",
    "producers",
    "findings",
    "unopened_batches",
    "unseen_ranges",
    "trimmed_ranges",
)
UNPROVEN: Final = ("unopened_batches", "unseen_ranges")
"""Of these sums nothing may be there in a topic of which anything is to be proven."""
_VERDICTS: Final = tuple(TopicResult)
_CLEAN, _FINDINGS, _NOT_PROVEN = range(len(_VERDICTS))


def judge_topics(sums: pa.RecordBatch) -> pa.RecordBatch:
    """One row of `tables.TOPIC_SUMS` for each topic to `tables.TOPICS`."""
    findings, *unproven = (sums.column(name).to_numpy() for name in ("findings", *UNPROVEN))
    verdict = np.where(findings > 0, _FINDINGS, np.where(sum(unproven) > 0, _NOT_PROVEN, _CLEAN))
    names = pa.array([each.value for each in _VERDICTS]).take(pa.array(verdict))
    columns = [sums.column(name) for name in TOPICS.names[:-1]]
    return pa.RecordBatch.from_arrays([*columns, names], schema=TOPICS)


def demand_counted(topics: Sequence[tuple[str, int, int]]) -> None:
    """Refuse an extract if there is a topic with another number of rows than it counts itself.

    Raises:
        InvalidInputError: there is one: its name, its rows and what is counted.
    """
    for topic, rows, counted in topics:
        raise InvalidInputError(
            f"the extract has {rows:,} messages of {topic} and counts {counted:,} itself; make the extract again"
        )


def demand_order(topics: Sequence[str]) -> None:
    """Refuse an extract if there are topics whose rows are not in the order of their logs.

    Raises:
        InvalidInputError: there is one.
    """
    for topic in topics:
        raise InvalidInputError(f"the messages of {topic} are not in the order of its log; make the extract again")


def out_of_order(parts: pa.Table) -> list[str]:
    """Topics among `tables.TOPIC_PARTS` whose rows are not in order, within a row group or from one to the next."""
    ordered = parts.sort_by([("topic", "ascending"), ("row_group", "ascending")])
    topics = ordered.column("topic").combine_chunks().dictionary_encode()
    is_first = starts_of(topics.indices.to_numpy())
    wrong = ~ordered.column("in_order").to_numpy()
    is_behind, is_equal = np.zeros(len(wrong), np.bool_), np.ones(len(wrong), np.bool_)
    for name in ("ledger_id", "entry_id", "batch_index"):
        first = ordered.column(f"first_{name}").to_numpy()
        last = np.roll(ordered.column(f"last_{name}").to_numpy(), 1)
        is_behind |= is_equal & (first > last)
        is_equal &= first == last
    wrong |= ~(is_first | is_behind)
    return sorted(set(ordered.column("topic").take(pa.array(np.flatnonzero(wrong))).to_pylist()))
