"""What pins a ledger, a topic, a namespace or a bookie: the routes and their JSON. Nothing here loads a topic.

Sizes are given twice: one copy, as brokers report it, and all copies on bookies.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import AliasPath, BeforeValidator, Field

from pulsar_sidecar.api.guard import Owners, guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2Namespace, decode_segment
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.ledger_ownership.pins.bookies import BookiesReader
from pulsar_sidecar.ledger_ownership.pins.causes import PinCause
from pulsar_sidecar.ledger_ownership.pins.ports import BookieState
from pulsar_sidecar.ledger_ownership.pins.reading import PinsReader
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, BookieId, LedgerId
from pulsar_sidecar.model.names import TopicName

_BASE = "/admin/v2/pins"
_LISTED_LEDGERS = _LISTED_TOPICS = 100
_LedgerId = Annotated[
    int, Path(alias="ledgerId", ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.", examples=[4711])
]
_Bookie = Annotated[str, Path(description="The bookie's id, URL-encoded.", examples=["10.0.0.7:3181"])]


class NamespacePinsParameters(Parameters):
    """Which topics to look at; the largest come first."""

    offset: int = Field(default=0, ge=0, le=10_000_000)
    """Number of larger topics to skip."""
    limit: int = Field(default=20, ge=1, le=100)
    """Maximum number of topics."""


class BookiePinsParameters(Parameters):
    """Whose ledgers to list; the largest owners come first."""

    by_topic: bool = False
    """List topics instead of namespaces."""
    offset: int = Field(default=0, ge=0, le=10_000_000)
    """Number of larger owners to skip."""
    limit: int = Field(default=20, ge=1, le=1_000)
    """Maximum number of owners."""


class RemedyAnswer(Answer):
    """One way to let go."""

    what: str
    """What it does, and what it costs."""
    command: str | None
    """The command, or several after each other; null where there is none."""


class PinAnswer(Answer):
    """One thing that holds ledgers."""

    cause: PinCause
    """Why it holds them."""
    holder: str
    """The subscription, or the cursor that brokers keep for themselves; empty where the topic itself holds."""
    detail: str
    """What was seen."""
    ledgers: Annotated[int, BeforeValidator(len)]
    """Number of ledgers that it holds."""
    ledger_ids: Annotated[list[int], BeforeValidator(lambda ids: sorted(ids)[:_LISTED_LEDGERS])] = Field(
        validation_alias="ledgers"
    )
    """The first hundred of them."""
    bytes: int = Field(validation_alias=AliasPath("bytes", "once"))
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int = Field(validation_alias=AliasPath("bytes", "on_bookies"))
    """Bytes of all their copies on bookies."""
    frees_bytes: int = Field(validation_alias=AliasPath("frees", "once"))
    """Bytes that go once this pin alone lets go, one copy."""
    frees_on_bookies_bytes: int = Field(validation_alias=AliasPath("frees", "on_bookies"))
    """The same of all copies on bookies, after their next collection."""
    also_held_by: list[str]
    """Other pins that hold some of these ledgers: cause and holder."""
    ends_ms: int | None
    """When it ends by itself; null if it does not, or only once a broker loads the topic, or that is not known."""
    remedies: list[RemedyAnswer]
    """What helps, the mildest first."""


class LedgersHeldTogetherAnswer(Answer):
    """Ledgers that the same pins hold: they go once all of these have let go."""

    pins: list[str]
    """Cause and holder of each."""
    ledgers: int
    """Number of ledgers."""
    bytes: int = Field(validation_alias=AliasPath("bytes", "once"))
    """Bytes of these ledgers, one copy."""
    on_bookies_bytes: int = Field(validation_alias=AliasPath("bytes", "on_bookies"))
    """Bytes of all their copies on bookies."""


class TopicPinsAnswer(Answer):
    """What pins a topic without partitions, or one partition."""

    topic: Text
    """The topic, or the partition."""
    read_ms: int
    """When it was read."""
    loaded_by: str | None
    """The broker that has it loaded; null if none has, and then nothing of it is trimmed."""
    shadow_of: str | None
    """The topic whose ledgers a shadow topic (PIP-180) reads; what pins them is answered for that one."""
    ledgers: int
    """Number of ledgers in its list."""
    bytes: int = Field(validation_alias=AliasPath("bytes", "once"))
    """Bytes of these and of ledgers that its cursors name, one copy."""
    on_bookies_bytes: int = Field(validation_alias=AliasPath("bytes", "on_bookies"))
    """Bytes of all copies on bookies."""
    tiered_bytes: int
    """Bytes of its list that tiered storage has."""
    pins: list[PinAnswer]
    """What holds them, the largest first."""
    held: list[LedgersHeldTogetherAnswer]
    """Each ledger that a pin holds, counted once, by the pins that hold it together; the largest first."""


class NamespacePinsAnswer(Answer):
    """What pins the largest topics of a namespace."""

    namespace: str
    read_ms: int
    """When it was read."""
    topics: int
    """Number of topics; each partition counts."""
    listed_bytes: int
    """Bytes in the topics' lists, one copy, without the ledgers that they write to."""
    unreadable: Annotated[int, BeforeValidator(len)]
    """Number of topics whose lists cannot be read; nothing is answered of these."""
    unreadable_topics: Annotated[list[Text], BeforeValidator(lambda topics: topics[:_LISTED_TOPICS])] = Field(
        validation_alias="unreadable"
    )
    """The first hundred of them."""
    largest: list[TopicPinsAnswer]
    """The topics that were asked for, the largest first."""


class LedgerPinsAnswer(Answer):
    """What pins one ledger."""

    ledger_id: int
    read_ms: int
    """When it was read."""
    topic: Annotated[str | None, BeforeValidator(lambda topic: None if topic is None else str(topic))]
    """The topic that it belongs to by its own metadata; null if they name none."""
    kind: str | None
    """What the ledger is for; null once its metadata is gone."""
    bytes: int = Field(validation_alias=AliasPath("bytes", "once"))
    """Bytes, one copy."""
    on_bookies_bytes: int = Field(validation_alias=AliasPath("bytes", "on_bookies"))
    """Bytes of all copies on bookies."""
    pins: list[PinAnswer]
    """What holds it."""
    bookies: list[str]
    """Bookies that hold entries of it; asked only of a ledger whose metadata is gone."""


class ShareAnswer(Answer):
    """What one owner has on a bookie."""

    owner: str | None
    """A namespace, or a topic; null for ledgers that name no topic."""
    ledgers: int
    """Number of ledgers."""
    size_bytes: int
    """Bytes on this bookie."""


class CompactionAnswer(Answer):
    """Which entry logs a bookie compacts."""

    threshold: float
    """It takes those that are less full."""
    interval_seconds: float
    """Time between two of them; 0 is never."""
    is_suspended: bool
    """Whether it is suspended, by an operator or by the bookie while its disks are too full."""


class BookieFiguresAnswer(Answer):
    """A bookie's own figures and settings."""

    live_bytes: int
    """Bytes of the ledgers that existed at its last collection, in the entry logs that it left."""
    entry_logs: int
    """Number of entry logs that its last collection left, without the one that it writes to."""
    disk_used_bytes: int
    """Bytes of its ledgers' disks that are used, by whatever is on them."""
    disk_total_bytes: int
    """Bytes of these disks."""
    ledgers: int
    """Number of ledgers in its index at its last collection."""
    gc_wait_seconds: float
    """Time between two collections (``gcWaitTime``)."""
    entry_log_limit_bytes: int
    """An entry log that is smaller is still written to, and not collected (``logSizeLimit``)."""
    minor: CompactionAnswer
    """Minor compaction."""
    major: CompactionAnswer
    """Major compaction."""
    is_collecting: bool
    """Whether it collects because it was asked to."""


class BookiePinsAnswer(Answer):
    """What a bookie keeps, and why it still does."""

    bookie: str
    state: BookieState
    """``down`` if it is not registered although it has a cookie, or ledgers name it."""
    read_ms: int
    """When all ledgers were read; the bookie's figures are of now."""
    ledgers: int
    """Number of ledgers that keep entries there, by their metadata."""
    open_ledgers: int
    """Those of them that are still written to; their bytes are not counted."""
    size_bytes: int
    """Bytes of the others on this bookie."""
    figures: BookieFiguresAnswer | None
    """The bookie's own figures; null if they cannot be read."""
    problem: str | None
    """Why the figures cannot be read."""
    uncollected_at_most_bytes: int | None
    """Bytes of deleted ledgers that its last collection may have left, if all entry logs, the one that it writes to
    included, were full: a bookie does not tell how large they are. Null if its figures cannot be read."""
    uncollected_ledgers: int | None
    """Number of ledgers that its index knew and that no longer exist."""
    unreadable_ledgers: Annotated[int, BeforeValidator(len)]
    """Number of ledgers, of all bookies, whose metadata cannot be read; any bookie may hold entries of them."""
    unreadable_ledger_ids: Annotated[list[int], BeforeValidator(lambda ids: ids[:_LISTED_LEDGERS])] = Field(
        validation_alias="unreadable_ledgers"
    )
    """The first hundred of them."""
    remedies: list[RemedyAnswer]
    """What makes it collect."""
    owners: int
    """Number of owners."""
    shares: list[ShareAnswer]
    """The owners that were asked for, the largest first."""


def router(reader: PinsReader) -> APIRouter:
    routes = guarded_router("pins")
    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{_BASE}{path.removeprefix('/admin/v2').removeprefix('/admin')}", name=f"{version}topic_pins")
        @takes(Right.STATE)
        def topic_pins(topic: Annotated[TopicName, Depends(topic_of)]) -> list[TopicPinsAnswer]:
            """What keeps a topic's bytes on bookies: cursors, retention, copies; and what each remedy frees.

            One answer for each partition. 404: no such topic.
            """
            return [TopicPinsAnswer.model_validate(found) for found in reader.topic(topic)]

    @routes.get(f"{_BASE}{NAMESPACE_PATH.removeprefix('/admin/v2')}")
    @takes(Right.POLICY)
    def namespace_pins(
        namespace: V2Namespace, parameters: Annotated[NamespacePinsParameters, Query()]
    ) -> NamespacePinsAnswer:
        """The same of the largest topics of a namespace."""
        return NamespacePinsAnswer.model_validate(reader.namespace(namespace, parameters.offset, parameters.limit))

    @routes.get(f"{_BASE}/ledgers/{{ledgerId}}")
    @takes(Right.OWNED_STATE)
    def ledger_pins(ledger_id: _LedgerId, owners: Owners) -> LedgerPinsAnswer:
        """What pins one ledger; of a ledger that is deleted, which bookies have not collected it.

        404: it has no metadata, and no bookie holds an entry of it.
        """
        owners.require(lambda: reader.tenants_of([LedgerId(ledger_id)]))
        return LedgerPinsAnswer.model_validate(reader.ledger(LedgerId(ledger_id)))

    return routes


def bookies_router(reader: BookiesReader) -> APIRouter:
    routes = guarded_router("pins")

    @routes.get(f"{_BASE}/bookies")
    @takes(Right.CLUSTER_STATE)
    def bookies_pins() -> list[BookiePinsAnswer]:
        """Each bookie, those that are down included: what ledgers have there, and what it has not collected.

        All ledgers are read at most once a minute.
        """
        return [BookiePinsAnswer.model_validate(found) for found in reader.bookies()]

    @routes.get(f"{_BASE}/bookies/{{bookie}}")
    @takes(Right.CLUSTER_STATE)
    def bookie_pins(bookie: _Bookie, parameters: Annotated[BookiePinsParameters, Query()]) -> BookiePinsAnswer:
        """One bookie, with the namespaces or topics that have most there.

        404: no such bookie.
        """
        wanted = BookieId(decode_segment(bookie))
        by_topic, offset, limit = parameters.by_topic, parameters.offset, parameters.limit
        return BookiePinsAnswer.model_validate(reader.bookie(wanted, by_topic=by_topic, offset=offset, limit=limit))

    return routes
