"""What the pages of subscriptions show, computed from the REST door's answers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.web.readings import Reading
from pulsar_sidecar.web.strips import Strip, bars

CHOICES: Final = (("holes", "with holes"), ("nearly full", "nearly full"), ("full", "full"))
_STATES: Final = {
    ("full", True): ("bad", "full: dispatch pauses"),
    ("full", False): ("bad", "full: acknowledgements are lost"),
    ("nearly full", True): ("warn", "nearly full: dispatch will pause"),
    ("nearly full", False): ("warn", "nearly full"),
    ("fits", True): ("good", "fits"),
    ("fits", False): ("good", "fits"),
}
_LEAST_SEEN: Final = 8
_NOT_ASKED: Final = Reading()


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One subscription, as stored.

    Attributes:
        kind: of its state, as `shown.html.j2` has them; ``word`` is the state.
        left: ranges that can be added.
        waiting: entries that are not acknowledged.
    """

    topic: str
    subscription: str
    kind: str
    word: str
    ranges: int
    limit: int
    left: int
    waiting: int
    position: str
    strip: Strip


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Cursors that are stuck, and slow loads; neither where the scope has no such route."""

    stuck: Reading = field(default=_NOT_ASKED)
    loads: Reading = field(default=_NOT_ASKED)

    @property
    def was_asked(self) -> bool:
        """Whether the scope has one."""
        return self.stuck is not _NOT_ASKED


def parameters_of(show: str, contains: str) -> dict[str, str | int | bool | None]:
    """The REST door's filters for those of the page."""
    fullness = show if show in ("full", "nearly full") else None
    return {"fullness": fullness, "holes": True if show == "holes" else None, "contains": contains or None}


def rows_of(answer: Mapping[str, Any]) -> list[SubscriptionRow]:
    """Of the answer of ``storedAckStates``."""
    return [_row(state, answer["maxUnackedRangesToPersist"]) for state in answer["states"]]


def _row(state: Mapping[str, Any], limit: int) -> SubscriptionRow:
    return SubscriptionRow(
        state["topic"],
        state["subscription"],
        *_STATES[state["fullness"], state["pauseEnabled"]],
        state["ranges"],
        limit,
        max(0, limit - state["ranges"]),
        state["entries"] - state["acknowledged"],
        state["markDeletePosition"],
        strip_of(state["stretches"], state["acknowledged"], state["entries"]),
    )


def strip_of(percentages: Sequence[int], acknowledged: int, entries: int) -> Strip:
    """Draw the entries beyond the mark-delete position, by percentages of stretches of the same length.

    The higher a bar, the more is acknowledged; a part that is not nothing is always seen.
    """
    beyond = format_count(entries, "entry")
    text = f"{acknowledged:,} of {beyond} beyond the position are acknowledged" if entries else "nothing beyond"
    seen = ((number, 1, max(_LEAST_SEEN, share)) for number, share in enumerate(percentages) if share)
    return Strip(text, bars(seen), max(1, len(percentages)))
