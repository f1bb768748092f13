"""What every room is to the process: one entry, which can be described without a cluster and opened with one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from prometheus_client.registry import Collector

from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.runtime import TopicWatch


@dataclass(frozen=True, slots=True)
class Room:
    """An open room, as the process and its doors see it. A room without loops or metrics has only services.

    Attributes:
        services: what the room's routes call, one for each router of its entry.
        start: starts what runs by itself, and returns at once.
        close: finishes the work in hand; the room's adapters are closed after it.
        ready: None when the room can work, otherwise what is missing.
        collectors: the room's metrics.
    """

    services: Sequence[Any]
    start: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    ready: Callable[[], str | None] = lambda: None
    collectors: Sequence[Collector] = ()


@dataclass(frozen=True, slots=True)
class RoomEntry:
    """A room in the list of rooms.

    Attributes:
        routers: make the room's routes around its services; docs/generate.py describes them without any service.
        open: opens the room with its adapters, which ``cluster`` closes at the end; the room has not started then.
    """

    routers: Sequence[Callable[[Any], APIRouter]]
    open: Callable[[ClusterAccess], Room]

    def routes(self, services: Sequence[Any] | None = None) -> list[APIRouter]:
        """The routes of the open room, or, to be described, of none."""
        called = [None] * len(self.routers) if services is None else services
        return [router(service) for router, service in zip(self.routers, called, strict=True)]


def missing_in(rooms: Iterable[Room]) -> str | None:
    """What the first room that cannot work misses; None when all of them can."""
    return next(filter(None, (room.ready() for room in rooms)), None)


def topic_watch(
    cluster: ClusterAccess, name: str, look: Callable[[TopicName], object], topics: Iterable[str], every_seconds: float
) -> TopicWatch:
    """Looks at the topics of a setting again and again, for the room's metrics."""
    return TopicWatch(name, look, [parse_topic_name(topic) for topic in topics], every_seconds, cluster.clock)
