"""A feature as the process sees it: an entry that is described without a cluster and opened with one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from prometheus_client.registry import Collector

from pulsar_sidecar.bootstrap.cluster_access import ClusterAccess
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.runtime import TopicWatch


@dataclass(frozen=True, slots=True)
class Feature:
    """An open feature, as the process, the server and the CLI see it; one without loops or metrics has only services.

    Attributes:
        services: services that the feature's routes call, one for each router of its entry.
        start: function that starts the feature's loops and returns at once.
        close: function that finishes current work; the feature's adapters are closed after it.
        ready: function that returns None if the feature can work, otherwise the reason.
        collectors: metrics of the feature.
    """

    services: Sequence[Any]
    start: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    ready: Callable[[], str | None] = lambda: None
    collectors: Sequence[Collector] = ()


@dataclass(frozen=True, slots=True)
class FeatureEntry:
    """A feature in the list of features.

    Attributes:
        routers: functions that make routes from services; docs/generate.py describes the routes without any service.
        open: function that opens the feature without starting it, with adapters that ``cluster`` closes at the end.
    """

    routers: Sequence[Callable[[Any], APIRouter]]
    open: Callable[[ClusterAccess], Feature]

    def routes(self, services: Sequence[Any] | None = None) -> list[APIRouter]:
        """Return the routes of the open feature; without services only their description."""
        called = [None] * len(self.routers) if services is None else services
        return [router(service) for router, service in zip(self.routers, called, strict=True)]


def missing_in(features: Iterable[Feature]) -> str | None:
    """Return the reason why the first feature that cannot work does not; None if all can."""
    return next(filter(None, (feature.ready() for feature in features)), None)


def topic_watch(
    cluster: ClusterAccess, name: str, look: Callable[[TopicName], object], topics: Iterable[str], every_seconds: float
) -> TopicWatch:
    """Return a periodic reading of the topics of a setting, for the feature's metrics."""
    return TopicWatch(name, look, [parse_topic_name(topic) for topic in topics], every_seconds, cluster.clock)
