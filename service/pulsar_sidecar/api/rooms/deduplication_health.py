"""Deduplication cursors that are stuck, and the slowest loads, from what is stored; read only, and loads nothing."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from pulsar_sidecar.api.paths import NAMESPACE_PATH, V2Namespace
from pulsar_sidecar.api.rooms.deduplication import AmountAnswer
from pulsar_sidecar.api.schemas import Answer, Parameters, Reason, Text
from pulsar_sidecar.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.deduplication.inspection.lag_limits import DEFAULT_BYTES, DEFAULT_ENTRIES, LagLimits
from pulsar_sidecar.deduplication.inspection.stuck import StuckReason

_MOST = 2**63 - 1


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


_Parameters = Annotated[StuckParameters, Query()]


def router(health: DeduplicationHealth) -> APIRouter:
    """The routes; they change nothing."""
    routes = APIRouter(tags=["deduplication"], responses={"default": {"model": Reason}})

    @routes.get("/admin/v2/deduplication/stuck")
    def stuck_deduplication_cursors(parameters: _Parameters) -> StuckReportAnswer:
        """Deduplication cursors of all topics that exist although deduplication is off, or lag. Loads no topic."""
        return StuckReportAnswer.model_validate(health.stuck(None, parameters.limits, parameters.most))

    @routes.get(f"{NAMESPACE_PATH}/deduplication/stuck")
    def stuck_deduplication_cursors_of_namespace(namespace: V2Namespace, parameters: _Parameters) -> StuckReportAnswer:
        """The same of one namespace."""
        return StuckReportAnswer.model_validate(health.stuck(namespace, parameters.limits, parameters.most))

    @routes.get(f"{NAMESPACE_PATH}/deduplication/forecast")
    def deduplication_forecast(namespace: V2Namespace) -> LoadForecastsAnswer:
        """The ten slowest loads of a namespace, because of deduplication. Loads no topic."""
        return LoadForecastsAnswer.model_validate(health.slowest_loads(namespace))

    return routes
