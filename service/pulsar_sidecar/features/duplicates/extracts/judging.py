"""Judgement of each suspect, given the earlier rows with its id: the rules of `findings`, by column.

It also judges each topic, from sums of several tables.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.duplicates.extracts.row_groups import PLACE, Mask, Numbers, ascends, starts_of
from pulsar_sidecar.features.duplicates.extracts.tables import TOPICS
from pulsar_sidecar.features.duplicates.rows import FindingKind, MessageKind
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.formatting import format_count

_NOWHERE: Final = np.iinfo(np.int64).max
KINDS: Final = tuple(FindingKind)
COUNTED_AS: Final = ("duplicates", "reused", "repeated", "going_back", "epochs")
"""Columns of `tables.PRODUCERS` that count `KINDS`."""
_MESSAGE_KINDS: Final = [kind.name.lower() for kind in MessageKind]
_AS_THEY_ARE: Final = ("sequence_id", *PLACE, "publish_time_ms", "highest")
_COMPARED: Final = ("producer", "sequence_id", "row", "payload_hash", "is_read")
_DUPLICATE, _REUSED, _REPEATED, _GOING_BACK, _EPOCH = range(len(KINDS))

UNPROVEN: Final = ("unopened_batches", "unseen_ranges")
"""Sums that must be 0 for a topic to be proven clean."""


def _first_rows(
    places: Numbers, producer: Numbers, sequence_id: Numbers, row: Numbers, payload_hash: Numbers, is_read: Mask
) -> tuple[Numbers, Numbers, Numbers]:
    """Return the first rows with the ids of the rows at these places, or `_NOWHERE`, among rows in any order.

    The first of all, of those whose payload was not read, and of those whose payload was read and has the same hash.
    """
    order = np.lexsort((row, payload_hash, ~is_read, sequence_id, producer))
    row, is_read = row[order], is_read[order]
    new_id = starts_of(producer[order]) | starts_of(sequence_id[order])
    new_payload = new_id | starts_of(payload_hash[order]) | starts_of(is_read)
    unread = np.where(is_read, _NOWHERE, row)
    found = (
        _least(row, new_id),
        _least(unread, new_id),
        np.where(is_read, _least(row, new_payload), _NOWHERE),
    )
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    any_payload, unread, same_payload = (each[back[places]] for each in found)
    return any_payload, unread, same_payload


def _least(numbers: Numbers, is_start: Mask) -> Numbers:
    """Return the least number from each start up to the next."""
    starts = np.flatnonzero(is_start)
    if not len(starts):
        return numbers
    least: Numbers = np.minimum.reduceat(numbers, starts)[np.cumsum(is_start) - 1]
    return least


def judge_suspects(
    stored: Mapping[str, Any], suspects: Mapping[str, Any]
) -> tuple[Numbers, Numbers, dict[str, pa.Array]]:
    """Return each finding's producer, its place in `KINDS`, and the columns of `tables.FINDINGS` without producers.

    Each suspect is one finding, and another where it begins an epoch. ``stored`` has the columns of
    `row_groups.rows_with_ids`, and the number of each row's ``producer``, for all rows that have the id of a suspect;
    ``suspects`` has those of `tables.SUSPECTS`.
    """
    order = np.argsort(stored["row"])
    rows = {name: values[order] for name, values in stored.items()}
    place = np.searchsorted(rows["row"], suspects["row"])
    any_payload, unread, same_payload = _first_rows(place, *(rows[name] for name in _COMPARED))
    about = {**{name: values[place] for name, values in rows.items()}, **suspects}
    row = about["row"]
    kind = np.where(unread < row, _REPEATED, _REUSED)
    kind = np.where(same_payload < row, _DUPLICATE, kind)
    kind = np.where(about["is_read"], kind, _REPEATED)
    kind = np.where(any_payload < row, kind, _GOING_BACK)
    epochs = np.flatnonzero(suspects["may_begin_epoch"] & (kind != _DUPLICATE))
    every = np.append(np.arange(len(kind)), epochs)
    is_same, is_alone = (kind == _DUPLICATE)[every], (kind == _GOING_BACK)[every]
    is_alone[len(kind) :] = True
    kinds = np.append(kind, np.full(len(epochs), _EPOCH))
    beside = np.where(is_same, same_payload[every], any_payload[every])
    # A suspect without an earlier row is alone, and any place will do.
    first = np.minimum(np.searchsorted(rows["row"], beside), max(len(order) - 1, 0))
    columns = {
        "finding": pa.array([each.value for each in KINDS]).take(pa.array(kinds)),
        "message_kind": pa.array(_MESSAGE_KINDS).take(pa.array(about["message_kind"][every])),
        **{name: pa.array(about[name][every]) for name in _AS_THEY_ARE},
        **{f"earlier_{name}": pa.array(rows[name][first], mask=is_alone) for name in PLACE},
    }
    return about["producer"][every], kinds, columns


# --- topics --------------------------------------------------------------------------------------------------------


def judge_topics(sums: pa.Table) -> pa.Table:
    """Turn `tables.TOPIC_SUMS`, with one row for each topic, into `tables.TOPICS`."""
    findings, *unproven = (sums.column(name).to_numpy() for name in ("findings", *UNPROVEN))
    verdict = np.where(sum(unproven) > 0, TopicResult.NOT_PROVEN.value, TopicResult.CLEAN.value)
    verdict = np.where(findings > 0, TopicResult.FINDINGS.value, verdict)
    return sums.append_column("verdict", pa.array(verdict)).select(TOPICS.names).cast(TOPICS)


def demand_counted(sums: pa.Table) -> None:
    """Refuse an extract in which a topic's rows differ from its own count, by `tables.TOPIC_SUMS`."""
    miscounted = sums.filter(pc.not_equal(sums.column("rows"), sums.column("counted")))
    if miscounted.num_rows:
        first = miscounted.slice(0, 1).to_pylist()[0]
        raise InvalidInputError(
            f"the extract has {format_count(first['rows'], 'message')} of {first['topic']} and counts "
            f"{first['counted']:,} itself; extract the messages again"
        )


def demand_order(parts: pa.Table) -> None:
    """Refuse an extract in which a topic's rows are not in the order of its log, by `tables.TOPIC_PARTS`."""
    ordered = parts.sort_by([("topic", "ascending"), ("row_group", "ascending")])
    topics = ordered.column("topic").combine_chunks().dictionary_encode()
    is_first = starts_of(topics.indices.to_numpy())
    first, last = ([ordered.column(f"{end}_{name}").to_numpy() for name in PLACE] for end in ("first", "last"))
    # Within a row group, or from one to the next.
    wrong = np.flatnonzero(~ordered.column("in_order").to_numpy() | ~(is_first | ascends(first, last)))
    if len(wrong):
        topic = ordered.column("topic")[int(wrong[0])].as_py()
        raise InvalidInputError(f"the messages of {topic} are not in the order of its log; extract the messages again")
