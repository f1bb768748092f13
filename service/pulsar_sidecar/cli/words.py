"""What people read instead of keys and raw numbers: words, times, lengths of time and sizes.

Invariant: the unit of a number follows from its name alone, as in the REST reference: ``...Ms`` is a time, or a length
of time if it is listed here, ``...Seconds`` a length of time, ``...Bytes`` a size.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from pulsar_sidecar.analysis.formatting import format_age, format_bytes
from pulsar_sidecar.model.errors import InvalidInputError

LENGTHS_OF_TIME: Final = frozenset({"ageMs", "oldestAgeMs", "idleP99Ms", "recentP99Ms", "resolutionMs", "runningMs"})
TIMES_WITHOUT_A_UNIT: Final = frozenset(
    {"deliverAt", "dueFrom", "dueTo", "firstDue", "lastDue", "newDeliverAt", "now", "publishedBefore"}
)
_WORDS: Final = {
    "advertisedUrl": "URL",
    "inflight": "in flight",
    "instances": "sidecars",
    "mayCondemn": "may plan deletions",
    "messageId": "message id",
    "oldestAgeMs": "oldest",
    "operationId": "operation id",
    "topicName": "topic",
    "waitingBytes": "bytes waiting",
    "walkSeconds": "reading took",
    "walkedMs": "last reading",
}
_AS_IT_IS: Final = frozenset({"metadata", "offloadContext", "properties", "record", "selection"})
"""Objects that a caller may hand back, or whose keys are a user's: nothing is added to them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNIT = re.compile("(?<=[a-z0-9])(Ms|Bytes|Seconds)$")
_NEXT_WORD = re.compile("(?<=[a-z0-9])[A-Z]")


def words(name: str) -> str:
    """A field's name, as words without its unit."""
    return _WORDS.get(name) or _NEXT_WORD.sub(lambda found: f" {found[0].lower()}", _UNIT.sub("", name))


def reading(name: str, value: object) -> str | None:
    """A time, a length of time or a size as people read it; None if the field is none of these."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name in LENGTHS_OF_TIME:
        return length_of_time(value)
    if name.endswith("Ms") or name in TIMES_WITHOUT_A_UNIT:
        return iso_time(int(value))
    if name.endswith("Bytes") or name == "bytes":
        return format_bytes(int(value))
    if name.endswith("Seconds"):
        return length_of_time(value * 1000)
    return None


def with_readings(value: object) -> object:
    """A document whose times and sizes stand in it twice: as numbers, and, by the name without the unit, for people."""
    if isinstance(value, list):
        return [with_readings(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    document: dict[str, object] = {}
    for name, item in value.items():
        document[name] = item if name in _AS_IT_IS else with_readings(item)
        text = reading(name, item)
        beside = f"{name}Time" if name in TIMES_WITHOUT_A_UNIT else _UNIT.sub("", name)
        if text is not None and beside not in value:
            document[beside] = text
    return document


def length_of_time(milliseconds: float) -> str:
    """``2.5 ms``, ``3 hours``."""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else format_age(int(milliseconds))


def iso_time(milliseconds: int) -> str:
    """A time since the epoch in ISO 8601, UTC; one that a calendar does not have stays a number."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Milliseconds since the epoch, written so or in ISO 8601.

    Raises:
        InvalidInputError: neither, or before the epoch; or ISO 8601 without an offset, which could be any place's time.
    """
    if re.fullmatch("[0-9]{1,19}", text):
        return int(text)
    moment = None
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
    if moment is None or moment.tzinfo is None or moment < _EPOCH:
        raise InvalidInputError(
            f"{text[:60]!r} is not a time; write milliseconds since the epoch, or ISO 8601 with an offset, such as "
            "2026-12-24T18:00:00Z"
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)
