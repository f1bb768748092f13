"""What a look-up answers where it found nothing: a failed one is not an absence."""

from dataclasses import dataclass
from typing import TypeVar

from pulsar_sidecar.model.errors import TemporaryError

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such thing, and that was read: no such ledger in a list, or no such entry in a ledger."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """It could not be read, so nothing is known of it; ``reason`` is why."""

    reason: str


def demanded(value: _Value | Unreadable, what: str) -> _Value:
    """What was read. Raises `TemporaryError` where it could not be."""
    if isinstance(value, Unreadable):
        raise TemporaryError(f"{what} cannot be read: {value.reason}")
    return value
