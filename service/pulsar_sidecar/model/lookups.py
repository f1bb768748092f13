"""Results of look-ups that found nothing: a failed look-up is not an absence."""

from dataclasses import dataclass
from typing import TypeVar

from pulsar_sidecar.model.errors import TemporaryError

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Absent:
    """Absence that was read: no such ledger in a list, or no such entry in a ledger."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Failed look-up, after which nothing is known; ``reason`` is its cause."""

    reason: str


def demanded(value: _Value | Unreadable, what: str) -> _Value:
    """Return the value that was read; raise `TemporaryError` if it could not be."""
    if isinstance(value, Unreadable):
        raise TemporaryError(f"{what} cannot be read: {value.reason}")
    return value
