"""The state of deduplication (PIP-6) on Pulsar's own paths: what brokers remember of producers, what a load costs.

With deduplication cursors that are stuck, and the slowest loads, from what is stored; read only, and loads nothing.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.paths import NAMESPACE_PATH, TOPIC_PATHS, V2Namespace
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.api.schemas import Answer, Parameters, Text
from pulsar_sidecar.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.deduplication.inspection.lag_limits import DEFAULT_BYTES, DEFAULT_ENTRIES, LagLimits
from pulsar_sidecar.deduplication.inspection.replay import MOST_ENTRIES
from pulsar_sidecar.deduplication.inspection.service import DeduplicationService
from pulsar_sidecar.deduplication.inspection.stuck import StuckReason
from pulsar_sidecar.deduplication.policies import PolicyLevel
from pulsar_sidecar.deduplication.replay_cost import ASSUMPTION
from pulsar_sidecar.model.names import TopicName

_MOST = 2**63 - 1


class DeduplicationParameters(Parameters):
    """Parameters of ``deduplication``."""

    ask_broker: bool = False
    """Ask the broker that has the topic loaded for its status; loads nothing."""
    replay: bool = False
    """Read the entries after the snapshot, and rebuild the map as a broker that loads the topic does."""
    limit: int = Field(default=MOST_ENTRIES, ge=1, le=100_000_000)
    """Entries that a replay reads at most, of each partition."""


class DecisionAnswer(Answer):
    """Whether a topic is to be deduplicated, and which level decides."""

    enabled: bool | None
    """Null if the brokers could not be asked."""
    level: PolicyLevel | None
    """The level that decides; null for a system topic, or if it is not known."""
    reason: str
    """The same in words."""


class ProducerSequenceAnswer(Answer):
    """A producer in a snapshot."""

    name: str
    """The producer's name."""
    last_sequence_id: int
    """The highest sequence id that is stored, as a signed number."""


class ReplicatedPositionAnswer(Answer):
    """A replicator in a snapshot, which keeps the last position of its source in place of a sequence id."""

    producer: str
    """The replicator's name as a producer."""
    position: Text
    """The source's ledger and entry (``_LID`` and ``_EID``)."""


class SnapshotAnswer(Answer):
    """A snapshot as a broker stored it."""

    position: Text
    """Every entry up to here is in it."""
    covered_until_ms: int | None
    """When the message there, or the next one if that is gone, was published, by its producer's clock; null if that
    is not known."""
    age_ms: int | None
    """How long ago that was."""
    names: int
    """Names that are stored: a replicator counts twice."""
    size_bytes: int
    """Bytes of the cursor's entry, or of its node."""
    ledger_id: int | None
    """The cursor's ledger; null if the cursor's node holds the snapshot."""
    entry_id: int | None
    """The entry of that ledger."""
    lost: str | None
    """Why a broker would begin with an empty map; null if it would not."""
    producers: list[ProducerSequenceAnswer]
    """In order of their names."""
    replicators: list[ReplicatedPositionAnswer]
    """Those that keep positions."""


class LimitsAnswer(Answer):
    """How far a snapshot may grow; null where the brokers could not be asked."""

    max_producers: int | None
    """Names that a broker stores at most (``brokerDeduplicationMaxNumberOfProducers``)."""
    max_entry_bytes: int | None
    """Of an entry of the cursor's ledger (``maxMessageSize``)."""
    max_node_bytes: int
    """Of the cursor's node in a stock ZooKeeper (``jute.maxbuffer``); one of ``bin/pulsar`` takes 10,485,760."""


class AmountAnswer(Answer):
    """Entries and their bytes."""

    entries: int
    size_bytes: int


class HeldLedgersAnswer(Answer):
    """Ledgers that a cursor keeps brokers from deleting."""

    ledgers: list[int]
    size_bytes: int


class SequenceRowAnswer(Answer):
    """One name in both maps."""

    name: str
    stored: int | None
    """In the snapshot; null if it is not there."""
    replayed: int
    """After the replay."""


class ReplayAnswer(Answer):
    """Last-sequence-persisted, rebuilt."""

    is_whole: bool
    """Whether a broker that loads and deduplicates the topic now gets this map."""
    entries: int
    """Entries that were replayed."""
    markers: int
    """Of them, those that brokers wrote themselves."""
    last: Text | None
    """The last one; null if there was none."""
    problems: list[str]
    """Why the map may be another one than a broker's."""
    rows: list[SequenceRowAnswer]
    """Every name, in order."""


class DeduplicationAnswer(Answer):
    """Deduplication of one topic, or of one partition (PIP-6)."""

    topic: Text
    """The topic, or the partition."""
    decision: DecisionAnswer
    """Whether it is to be deduplicated."""
    status: str | None
    """``deduplicationStatus`` in its broker's word; null if it was not asked, or no broker has loaded the topic."""
    snapshot: SnapshotAnswer | None
    """Null if there is no deduplication cursor, or it could not be read."""
    limits: LimitsAnswer
    """Of a snapshot."""
    since: AmountAnswer | None
    """What has come after the snapshot; null if that is not known."""
    replay_seconds: float | None
    """How long a load would replay that; 0 where deduplication is off, because a load then deletes the cursor."""
    replay_seconds_by: str = ASSUMPTION
    """Where that number comes from."""
    held: HeldLedgersAnswer | None
    """What brokers may not delete because of the cursor; null if that is not known."""
    held_alone: HeldLedgersAnswer | None
    """Of that, what no other cursor holds; null likewise."""
    replay: ReplayAnswer | None
    """Null unless ``replay`` was asked for."""
    remarks: list[str]
    """What one would not expect."""
    problem: str | None
    """Why something could not be read; null if everything could."""


class StuckParameters(Parameters):
    """Parameters of a search for stuck cursors."""

    entries: int = Field(default=DEFAULT_ENTRIES, ge=0, le=_MOST)
    """A cursor lags that is more entries than this behind the end of its topic."""
    size_bytes: int = Field(default=DEFAULT_BYTES, ge=0, le=_MOST)
    """The same in bytes."""
    most: int = Field(default=100, ge=1, le=100_000)
    """Maximum number of cursors shown."""

    @property
    def limits(self) -> LagLimits:
        """How far a cursor may be behind."""
        return LagLimits(self.entries, self.size_bytes)


class StuckCursorAnswer(Answer):
    """A cursor that retains ledgers although deduplication is off, or that lags."""

    topic: Text
    """A topic without partitions, or a partition."""
    reason: StuckReason
    because: str
    certain: bool
    """False where the topic's own policy, or the cursor's true position, is not known."""
    position: Text
    """Of the snapshot."""
    since: AmountAnswer | None
    """What came after it; null if that is not known."""
    held_ledgers: int
    held_bytes: int
    """Bytes of the ledgers that the cursor retains."""
    freed_bytes: int | None
    """Those of them that no other cursor retains: the remedy frees them once retention has ended. Null if unknown."""
    status: str | None
    """The broker's ``deduplicationStatus``; null where the topic is not loaded, or brokers were not asked."""
    remedy: str


class StuckReportAnswer(Answer):
    """What a search found."""

    topics: int
    """Partitions, and topics without partitions, that were searched."""
    cursors: int
    """How many of them have a deduplication cursor."""
    found: int
    """How many cursors are stuck."""
    held_bytes: int
    """What all of these hold."""
    stuck: list[StuckCursorAnswer]
    """Those that hold most."""
    unreadable: list[str]
    """What could not be read, and may be stuck."""


class LoadForecastAnswer(Answer):
    """What deduplication costs the next load of a topic."""

    topic: Text
    position: Text
    """Of the snapshot."""
    replay: AmountAnswer
    seconds: float
    deduplicated: bool | None
    """Null if the topic's own policy is not known."""
    times_out: bool
    """Whether it takes longer than ``topicLoadTimeoutSeconds``."""


class LoadForecastsAnswer(Answer):
    """The slowest loads first."""

    topics: int
    cursors: int
    """How many of them have a deduplication cursor; a load of the others replays nothing."""
    load_timeout_seconds: int
    """``topicLoadTimeoutSeconds`` of a broker."""
    slowest: list[LoadForecastAnswer]
    unreadable: list[str]
    """What could not be read, and may be slow."""
    assumption: str
    """What the seconds rest on."""


_Stuck = Annotated[StuckParameters, Query()]


def router(service: DeduplicationService) -> APIRouter:
    routes = guarded_router("deduplication")

    for path, topic_of, version in TOPIC_PATHS:

        @routes.get(f"{path}/deduplication", name=f"{version}deduplication")
        @takes(Right.STATE)
        def deduplication(
            topic: Annotated[TopicName, Depends(topic_of)],
            parameters: Annotated[DeduplicationParameters, Query()],
        ) -> list[DeduplicationAnswer]:
            """What is stored of a topic's deduplication, what a load would replay, and what its cursor holds.

            One answer for each partition, read from the metadata store and the bookies; brokers are asked for policies
            and settings only. The topic is not loaded. 404: no such topic.
            """
            at_most = parameters.limit if parameters.replay else 0
            views = service.show(topic, ask_broker=parameters.ask_broker, replay_at_most=at_most)
            return [DeduplicationAnswer.model_validate(view) for view in views]

    return routes


def health_router(health: DeduplicationHealth) -> APIRouter:
    """The routes; they change nothing."""
    routes = guarded_router("deduplication")

    @routes.get("/admin/v2/deduplication/stuck")
    @takes(Right.CLUSTER_STATE)
    def stuck_deduplication_cursors(parameters: _Stuck) -> StuckReportAnswer:
        """Deduplication cursors of all topics that exist although deduplication is off, or lag. Loads no topic."""
        return StuckReportAnswer.model_validate(health.stuck(None, parameters.limits, parameters.most))

    @routes.get(f"{NAMESPACE_PATH}/deduplication/stuck")
    @takes(Right.STATE)
    def stuck_deduplication_cursors_of_namespace(namespace: V2Namespace, parameters: _Stuck) -> StuckReportAnswer:
        """The same of one namespace."""
        return StuckReportAnswer.model_validate(health.stuck(namespace, parameters.limits, parameters.most))

    @routes.get("/admin/v2/deduplication/forecast")
    @takes(Right.CLUSTER_STATE)
    def deduplication_forecast() -> LoadForecastsAnswer:
        """The ten slowest loads of all topics, because of deduplication. Loads no topic."""
        return LoadForecastsAnswer.model_validate(health.slowest_loads(None))

    @routes.get(f"{NAMESPACE_PATH}/deduplication/forecast")
    @takes(Right.STATE)
    def deduplication_forecast_of_namespace(namespace: V2Namespace) -> LoadForecastsAnswer:
        """The same of a namespace."""
        return LoadForecastsAnswer.model_validate(health.slowest_loads(namespace))

    return routes
