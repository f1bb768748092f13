"""Plan of a sweep: what unloaded topics would free, by owner, and its price."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pulsar_sidecar.features.pins.results import Reclaimable, SweepPlan, UnloadedTopic, UnloadedTopics
from pulsar_sidecar.model.names import parse_topic_name

_GIGABYTE: Final = 1_000_000_000


def plan_of(pages: Sequence[UnloadedTopics], price_per_gb_month: float | None) -> SweepPlan:
    """Return the plan from all pages of a search, with the largest topics and owners first."""
    topics = sorted((topic for page in pages for topic in page.topics), key=lambda each: -each.on_bookies_bytes)
    free = [each for each in topics if each.obstacle is None]

    def by(name_of: Callable[[UnloadedTopic], str], chosen: Iterable[UnloadedTopic]) -> tuple[Reclaimable, ...]:
        groups: dict[str, list[UnloadedTopic]] = defaultdict(list)
        for each in chosen:
            groups[name_of(each)].append(each)
        sums = (_sum(name, group, price_per_gb_month) for name, group in groups.items())
        return tuple(sorted(sums, key=lambda each: (-each.on_bookies_bytes, each.name)))

    return SweepPlan(
        read_ms=pages[0].read_ms,
        examined=sum(page.examined for page in pages),
        loaded=sum(page.loaded for page in pages),
        unreadable=tuple(name for page in pages for name in page.unreadable),
        freed=_sum("all", free, price_per_gb_month),
        tenants=by(lambda each: parse_topic_name(each.topic).tenant, free),
        namespaces=by(lambda each: parse_topic_name(each.topic).namespace, free),
        left=by(lambda each: str(each.obstacle), (each for each in topics if each.obstacle is not None)),
        topics=tuple(topics),
    )


def _sum(name: str, topics: Sequence[UnloadedTopic], price: float | None) -> Reclaimable:
    on_bookies = sum(each.on_bookies_bytes for each in topics)
    return Reclaimable(
        name=name,
        topics=len(topics),
        ledgers=sum(each.ledgers for each in topics),
        bytes=sum(each.bytes for each in topics),
        on_bookies_bytes=on_bookies,
        price_per_month=None if price is None else round(on_bookies / _GIGABYTE * price, 2),
    )
