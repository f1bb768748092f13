"""What pins this? A ledger, topic, namespace or bookie: what keeps its bytes, until when, what each remedy frees."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import Response

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import parse_ledger_id
from pulsar_sidecar.model.names import TopicDomain, TopicName, parse_topic_name
from pulsar_sidecar.web import ask, words
from pulsar_sidecar.web.ask import Reading
from pulsar_sidecar.web.filters import Field, Pager, offset_of
from pulsar_sidecar.web.pages import pin_views
from pulsar_sidecar.web.shell import page

PATH = "/ui/pins"
_BASE = "/admin/v2/pins"
_KEEP_SECONDS = 10.0
_BOOKIES_KEEP_SECONDS = 60.0
_TOPICS = 20
_OWNERS = 50

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Pinned:
    """The page about one thing, or about all bookies.

    Attributes:
        kind: ``topic``, ``namespace``, ``ledger``, ``bookie`` or ``bookies``: what the answer is about.
        command: that answers the same.
        problem: why nothing was asked.
        pager: for what has a list.
        by_topic: whether a bookie's owners are topics.
    """

    kind: str
    fields: Sequence[Field]
    command: str
    reading: Reading | None = None
    problem: str | None = None
    pager: Pager | None = None
    by_topic: bool = False

    kind_of = staticmethod(pin_views.kind_of)
    holders_of = staticmethod(pin_views.holders_of)
    shared_of = staticmethod(pin_views.shared_of)

    @property
    def value(self) -> Any:
        return None if self.reading is None else self.reading.value

    def link(self, named: str) -> str:
        """The page about something else."""
        return f"{PATH}?{urlencode({'of': named})}"

    def bookie_link(self, bookie: str) -> str:
        """The page about a bookie, whose id may look like a topic's name (``bookieId`` in its bookkeeper.conf)."""
        return f"{self.link(bookie)}&kind=bookie"


@router.get(PATH)
async def pins(request: Request) -> Response:
    """By ``of``: a ledger's id, a topic, a namespace or a bookie; without it all bookies."""
    return await page(request, "pins.html.j2", view=await _view(request), title="What pins this?")


async def _view(request: Request) -> Pinned:
    named = request.query_params.get("of", "").strip()
    fields = [Field("of", "Ledger, topic, namespace or bookie", named)]
    if not named:
        reading = await ask.read(request, f"{_BASE}/bookies", keep_seconds=_BOOKIES_KEEP_SECONDS)
        return Pinned("bookies", fields, words.command("pins", "bookies"), reading)
    try:
        kind, path = target_of(named, is_bookie=request.query_params.get("kind") == "bookie")
    except InvalidInputError as error:
        return Pinned("none", fields, words.command("pins", "--help"), problem=str(error))
    if kind in ("topic", "ledger"):
        command = words.command("pins", kind, named)
        return Pinned(kind, fields, command, await ask.read(request, path, keep_seconds=_KEEP_SECONDS))
    return await _listed(request, kind, named, path, fields)


async def _listed(request: Request, kind: str, named: str, path: str, fields: Sequence[Field]) -> Pinned:
    offset, by_topic = offset_of(request), kind == "bookie" and request.query_params.get("by") == "topic"
    options = [*(["--by-topic"] if by_topic else ()), *([f"--offset={offset}"] if offset else ())]
    limit = _TOPICS if kind == "namespace" else _OWNERS
    parameters: dict[str, Any] = {"offset": offset, "limit": limit}
    if kind == "bookie":
        parameters["byTopic"] = "true" if by_topic else "false"
    keep = _KEEP_SECONDS if kind == "namespace" else _BOOKIES_KEEP_SECONDS
    reading = await ask.read(request, path, parameters, keep)
    pager = None
    if reading.value is not None:
        found = reading.value
        total = found["topics"] - found["unreadable"] if kind == "namespace" else found["owners"]
        pager = Pager.of(request, offset, limit, total)
    command = words.command("pins", kind, named, *options)
    return Pinned(kind, fields, command, reading, pager=pager, by_topic=by_topic)


def target_of(named: str, *, is_bookie: bool = False) -> tuple[str, str]:
    """What a text names, by its form, and the path of its pins; `InvalidInputError` if it is none of the four.

    ``4711`` is a ledger, ``host:port`` a bookie, ``tenant/namespace`` a namespace, and whatever else is a topic, unless
    it is known to be a bookie.
    """
    if is_bookie or ("/" not in named and ":" in named):
        return "bookie", ask.path(f"{_BASE}/bookies", named)
    if parse_ledger_id(named) is not None:
        return "ledger", f"{_BASE}/ledgers/{int(named)}"
    if "://" not in named and named.count("/") == 1:
        checked = parse_topic_name(f"persistent://{named}/topic")
        return "namespace", ask.path(f"{_BASE}/namespaces", checked.tenant, checked.namespace_portion)
    topic = parse_topic_name(named)
    return "topic", _topic_path(topic)


def _topic_path(topic: TopicName) -> str:
    if topic.domain is not TopicDomain.PERSISTENT:
        raise InvalidInputError(f"{topic} has no ledgers; write persistent://tenant/namespace/topic")
    cluster = () if topic.cluster is None else (topic.cluster,)
    return ask.path(f"{_BASE}/persistent", topic.tenant, *cluster, topic.namespace_portion, topic.local_name)
