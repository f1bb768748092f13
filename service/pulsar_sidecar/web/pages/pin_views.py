"""What the page of pins shows, computed from the REST door's answers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pulsar_sidecar.analysis.formatting import format_bytes
from pulsar_sidecar.web.strips import Strip, bars

_WIDTH: Final = 1000
_LEAST_SEEN: Final = 12
_GAP: Final = 4
_URGENT: Final = frozenset(
    {"unreadable-cursor", "unreadable-length", "unreadable-retention", "unreferenced", "not-loaded"}
)
_BY_ITSELF: Final = frozenset({"last-ledger", "next-trim", "not-collected", "cursor-ledger"})


@dataclass(frozen=True, slots=True)
class Holder:
    """A pin of a topic.

    Attributes:
        strip: which of the topic's held bytes it holds, on the same scale for all pins; pale where others do, too.
    """

    pin: Mapping[str, Any]
    strip: Strip

    @property
    def frees_alone(self) -> bool:
        """Whether anything goes once this pin alone lets go, or nothing else is in the way."""
        return bool(self.pin["freesBytes"] or self.pin["freesOnBookiesBytes"] or not self.pin["alsoHeldBy"])


def holders_of(topic: Mapping[str, Any]) -> list[Holder]:
    """Return the pins of a topic, each with its share of the picture."""
    places = list(_places(topic["held"]))
    return [Holder(pin, _strip(_name_of(pin), places)) for pin in topic["pins"]]


def shared_of(topic: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the ledgers that only go once several pins have let go."""
    return [held for held in topic["held"] if len(held["pins"]) > 1]


def kind_of(cause: str) -> str:
    """Return the kind of state of a cause, as `shown.html.j2` has them."""
    return "bad" if cause in _URGENT else "busy" if cause in _BY_ITSELF else "warn"


def _name_of(pin: Mapping[str, Any]) -> str:
    return f"{pin['cause']} {pin['holder']}".strip()


@dataclass(frozen=True, slots=True)
class _Place:
    left: int
    width: int
    held: Mapping[str, Any]


def _places(held: Sequence[Mapping[str, Any]]) -> Iterator[_Place]:
    """Ledgers with bytes side by side, as wide as they are large; the smallest are still seen."""
    total, left = sum(each["bytes"] for each in held), 0
    for each in held:
        if each["bytes"]:
            width = max(_LEAST_SEEN, _WIDTH * each["bytes"] // total)
            yield _Place(left, width, each)
            left += width


def _strip(name: str, places: Sequence[_Place]) -> Strip:
    holding = [place for place in places if name in place.held["pins"]]
    alone = [place for place in holding if len(place.held["pins"]) == 1]
    shared = [place for place in holding if place not in alone]
    parts = [f"{_size(alone)} alone"] if alone else []
    parts += [f"{_size(shared)} together with others"] if shared else []
    text = f"{name} holds {', '.join(parts) or 'no known bytes'}"
    return Strip(text, _drawn(alone), max(_WIDTH, sum(place.width for place in places)), _drawn(shared))


def _drawn(places: Sequence[_Place]) -> str:
    return bars((place.left, place.width - _GAP, 100) for place in places)


def _size(places: Sequence[_Place]) -> str:
    return format_bytes(sum(place.held["bytes"] for place in places))
