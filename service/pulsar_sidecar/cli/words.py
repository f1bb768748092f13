"""Readable words, times, durations and sizes instead of keys and raw numbers.

Invariant: the unit of a number follows from its name alone, as in the REST reference: ``...Ms`` is a time, or a
duration if listed here, ``...Seconds`` a duration, ``...Bytes`` a size.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.formatting import format_age, format_bytes

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
"""Objects that a caller may send back, or whose keys are a user's: the CLI adds nothing to them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BAR_WIDTH = 40
_UNIT = re.compile("(?<=[a-z0-9])(Ms|Bytes|Seconds)$")
_NEXT_WORD = re.compile("(?<=[a-z0-9])[A-Z]")


def words(name: str) -> str:
    """Return a field's name as words without its unit."""
    return _WORDS.get(name) or _NEXT_WORD.sub(lambda found: f" {found[0].lower()}", _UNIT.sub("", name))


def reading(name: str, value: object) -> str | None:
    """Return a readable time, duration or size; None if the field is none of these."""
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


def with_readable_texts(value: object) -> object:
    """Return a document in which a readable text, named without the unit, follows each time, duration and size."""
    if isinstance(value, list):
        return [with_readable_texts(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    document: dict[str, object] = {}
    for name, item in value.items():
        document[name] = item if name in _AS_IT_IS else with_readable_texts(item)
        text = reading(name, item)
        beside = f"{name}Time" if name in TIMES_WITHOUT_A_UNIT else _UNIT.sub("", name)
        if text is not None and beside not in value:
            document[beside] = text
    return document


def length_of_time(milliseconds: float) -> str:
    """Return a duration like ``2.5 ms`` or ``3 hours``."""
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else format_age(int(milliseconds))


def iso_time(milliseconds: int) -> str:
    """Return a time since the epoch in ISO 8601, UTC; a number if it is outside the calendar."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Parse a time, in milliseconds since the epoch or ISO 8601, to milliseconds.

    Raises:
        InvalidInputError: the text is neither, is before the epoch, or has no offset and so is ambiguous.
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


def bar(value: float, largest: float) -> str:
    """Return a bar proportional to the value, of at least one character unless it is zero."""
    return "#" * max(1, round(value / largest * _BAR_WIDTH)) if value else ""


def utc(second: int) -> str:
    """Return a second since the epoch as readable UTC."""
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"second {second}"


def known_count(number: int | None) -> str:
    """Return a number, or a question mark if it is unknown."""
    return "?" if number is None else f"{number:,}"


def span(seconds: int) -> str:
    """Return a readable duration."""
    for length, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            return f"{whole} {word}" if not rest or length == 60 else f"{whole}.{rest * 10 // length} {word}"
    return f"{max(0, seconds)} s"
