"""Page of the pins of a ledger, topic, namespace or bookie, with their ends and their remedies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.features.pins import results
from pulsar_sidecar.features.pins.results import LedgersHeldTogether, Pin, PinCause, TopicPins
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.reports.formatting import format_bytes
from pulsar_sidecar.web import ask, words
from pulsar_sidecar.web.ask import Reading
from pulsar_sidecar.web.filters import Field, Pager, offset_of
from pulsar_sidecar.web.scopes import topic_of, topic_path
from pulsar_sidecar.web.shell import page
from pulsar_sidecar.web.strips import Strip, bars

PATH = "/ui/pins"
_BASE = "/admin/v2/pins"
_KEEP_SECONDS: Final = {"topic": 10.0, "ledger": 10.0, "namespace": 10.0, "bookie": 60.0, "bookies": 60.0}
_LIMITS: Final = {"namespace": 20, "bookie": 50}
_ANSWERS: Final[Mapping[str, type[object]]] = {
    "topic": list[results.TopicPins],
    "ledger": results.LedgerPins,
    "namespace": results.NamespacePins,
    "bookie": results.BookiePins,
    "bookies": list[results.BookiePins],
}
_WIDTH: Final = 1000
_LEAST_SEEN: Final = 12
_GAP: Final = 4
_URGENT: Final = frozenset(
    {
        PinCause.UNREADABLE_CURSOR,
        PinCause.UNREADABLE_LENGTH,
        PinCause.UNREADABLE_RETENTION,
        PinCause.UNREFERENCED,
        PinCause.REPLACED_COPY,
        PinCause.NOT_LOADED,
    }
)
_BY_ITSELF: Final = frozenset(
    {PinCause.LAST_LEDGER, PinCause.NEXT_TRIM, PinCause.NOT_COLLECTED, PinCause.CURSOR_LEDGER}
)

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Holder:
    """Pin of a topic.

    Attributes:
        strip: its part of the topic's held bytes, on the same scale for all pins; pale if other pins hold it as well.
    """

    pin: Pin
    strip: Strip

    @property
    def frees_alone(self) -> bool:
        """True if releasing this pin alone frees anything, or no other pin is in the way."""
        return bool(self.pin.frees_bytes or self.pin.frees_on_bookies_bytes or not self.pin.also_held_by)


def holders_of(topic: TopicPins) -> list[Holder]:
    """Return the pins of a topic, each with its share of the picture."""
    places = list(_places(topic.held))
    return [Holder(pin, _strip(pin.name, places)) for pin in topic.pins]


def shared_of(topic: TopicPins) -> list[LedgersHeldTogether]:
    """Return the ledgers that only releasing several pins frees."""
    return [held for held in topic.held if len(held.pins) > 1]


def kind_of(cause: PinCause) -> str:
    """Return the kind of state of a cause, as `shown.html.j2` has them."""
    return "bad" if cause in _URGENT else "busy" if cause in _BY_ITSELF else "warn"


@dataclass(frozen=True, slots=True)
class _Place:
    left: int
    width: int
    held: LedgersHeldTogether


def _places(held: Sequence[LedgersHeldTogether]) -> Iterator[_Place]:
    """Yield ledgers with bytes side by side, as wide as they are large; the smallest remain visible."""
    total, left = sum(each.bytes for each in held), 0
    for each in held:
        if each.bytes:
            width = max(_LEAST_SEEN, _WIDTH * each.bytes // total)
            yield _Place(left, width, each)
            left += width


def _strip(name: str, places: Sequence[_Place]) -> Strip:
    holding = [place for place in places if name in place.held.pins]
    alone = [place for place in holding if len(place.held.pins) == 1]
    shared = [place for place in holding if place not in alone]
    parts = [f"{_size(alone)} alone"] if alone else []
    parts += [f"{_size(shared)} together with others"] if shared else []
    text = f"{name} holds {', '.join(parts) or 'no known bytes'}"
    return Strip(text, _drawn(alone), max(_WIDTH, sum(place.width for place in places)), _drawn(shared))


def _drawn(places: Sequence[_Place]) -> str:
    return bars((place.left, place.width - _GAP, 100) for place in places)


def _size(places: Sequence[_Place]) -> str:
    return format_bytes(sum(place.held.bytes for place in places))


# --- the page ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PinsPage:
    """Page about one object, or about all bookies.

    Attributes:
        kind: ``topic``, ``namespace``, ``ledger``, ``bookie`` or ``bookies``: the subject of the page.
        value: the result: one of `results`, or a list of them.
        command: command with the same output.
        problem: reason why nothing was requested.
        pager: pager of a result that is a list.
        by_topic: True if a bookie's owners are topics.
    """

    kind: str
    fields: Sequence[Field]
    command: str
    reading: Reading | None = None
    value: object = None
    problem: str | None = None
    pager: Pager | None = None
    by_topic: bool = False

    kind_of = staticmethod(kind_of)
    holders_of = staticmethod(holders_of)
    shared_of = staticmethod(shared_of)

    def link(self, named: str) -> str:
        """Return the address of another page."""
        return f"{PATH}?{urlencode({'of': named})}"

    def bookie_link(self, bookie: str) -> str:
        """Return the address of a bookie, whose id (``bookieId`` in bookkeeper.conf) may look like a topic's name."""
        return f"{self.link(bookie)}&kind=bookie"


@router.get(PATH)
async def pins(request: Request) -> Response:
    """Show the pins of ``of``: a ledger's id, a topic, a namespace or a bookie; without it all bookies."""
    return await page(request, "pins.html.j2", view=await _view(request), title="What pins this?")


async def _view(request: Request) -> PinsPage:
    named = request.query_params.get("of", "").strip()
    fields = [Field("of", "Ledger, topic, namespace or bookie", named)]
    try:
        kind, path = target_of(named, is_bookie=request.query_params.get("kind") == "bookie")
    except InvalidInputError as error:
        return PinsPage("none", fields, words.command("pins", "--help"), problem=str(error))
    parameters: dict[str, str | int | bool | None] = {}
    options: list[str] = []
    offset, limit = offset_of(request), _LIMITS.get(kind, 0)
    by_topic = kind == "bookie" and request.query_params.get("by") == "topic"
    if limit:
        parameters |= {"offset": offset, "limit": limit}
        options = [*(["--by-topic"] if by_topic else ()), *([f"--offset={offset}"] if offset else ())]
    if kind == "bookie":
        parameters["byTopic"] = "true" if by_topic else "false"
    reading = await ask.read(request, path, parameters, _KEEP_SECONDS[kind])
    found = reading.parsed(_ANSWERS[kind])
    pager = Pager.of(request, offset, limit, _listed_in(found)) if limit and found is not None else None
    command = words.command("pins", kind, *filter(None, [named]), *options)
    return PinsPage(kind, fields, command, reading, found, pager=pager, by_topic=by_topic)


def _listed_in(found: object) -> int:
    match found:
        case results.BookiePins():
            return found.owners
        case results.NamespacePins():
            return found.topics - found.unreadable
        case _:
            return 0


def target_of(named: str, *, is_bookie: bool = False) -> tuple[str, str]:
    """Return the kind of object that a text names, by its form, and the path of its pins.

    ``4711`` is a ledger, ``host:port`` a bookie, ``tenant/namespace`` a namespace, and everything else a topic, unless
    ``is_bookie``; nothing names all bookies.

    Raises:
        InvalidInputError: the text names none of them.
    """
    if not named:
        return "bookies", f"{_BASE}/bookies"
    if is_bookie or ("/" not in named and ":" in named):
        return "bookie", ask.path(f"{_BASE}/bookies", named)
    if parse_ledger_id(named) is not None:
        return "ledger", f"{_BASE}/ledgers/{int(named)}"
    if "://" not in named and named.count("/") == 1:
        checked = parse_topic_name(f"persistent://{named}/topic")
        return "namespace", ask.path(f"{_BASE}/namespaces", checked.tenant, checked.namespace_portion)
    return "topic", _BASE + topic_path(topic_of(named)).removeprefix("/admin/v2").removeprefix("/admin")
