"""Searches again and again for shadow topics (PIP-180) whose loading deletes ledgers of their sources, for the status.

Invariant: a search that has not ended, or that failed, is reported as such, never as "there are none".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

import structlog

from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS
from pulsar_sidecar.ledger_ownership.shadows import shadow_at
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError, UndecodableError
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName

log = structlog.get_logger("ledger-deletion")

_SEARCH_EVERY_SECONDS = 600.0
_AFTER_FAILURE_SECONDS = 30.0
_NODES_AT_ONCE = 500
_NODES_PER_SECOND = 2_000
_MOST_WARNINGS = 100
_NOT_KNOWN_YET = "shadow topics are not known yet: the first search for those that endanger their sources has not ended"


@dataclass(slots=True)
class ShadowWatch:
    """What the last search found; `run` is a loop for a thread of its own."""

    store: MetadataStore
    endangered_source: Callable[[TopicName], str | None]
    clock: Clock
    sidecars: Callable[[], int] = lambda: 1
    """How many there are; they share the rate, because each searches for itself."""
    _found: tuple[str, ...] = ()
    _ended_at: str | None = None
    _warnings: tuple[str, ...] = (_NOT_KNOWN_YET,)

    def warnings(self) -> tuple[str, ...]:
        """One for each shadow that endangers its source, or why that is not known; from memory."""
        return self._warnings

    def run(self, stop: StopSignal) -> None:
        """Search until stopped."""
        while not stop.is_set():
            try:
                found = self._search(stop)
            except SidecarError as error:
                self._report_failure(str(error))
                self.clock.wait_seconds(_AFTER_FAILURE_SECONDS, stop)
                continue
            except Exception:
                # A defect must not leave the last search's answer in place for good.
                self._report_failure("an unexpected failure, which the log shows")
                raise
            if not stop.is_set():
                self._found = found
                self._ended_at = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")
                self._report(found)
                self.clock.wait_seconds(_SEARCH_EVERY_SECONDS, stop)

    def _report_failure(self, why: str) -> None:
        before = "no search has ended yet" if self._ended_at is None else f"the last search ended at {self._ended_at}"
        failure = f"shadow topics could not be read, so some that endanger their sources may be missing here: {why}"
        self._report((f"{failure}; {before}", *self._found))

    def _report(self, warnings: tuple[str, ...]) -> None:
        before, self._warnings = self._warnings, warnings
        for warning in warnings:
            if warning not in before:
                log.warning("shadow topics", warning=warning)
        if before and not warnings:
            log.info("no shadow topic endangers its source")

    def _search(self, stop: StopSignal) -> tuple[str, ...]:
        shadows: dict[TopicName, TopicName] = {}
        warnings: list[str] = []
        for node in self._nodes(stop):
            try:
                shadow = shadow_at(node.path, node.data)
            except UndecodableError as error:
                warnings.append(str(error))
                continue
            if shadow is not None:
                # A partitioned topic's own node comes before its partitions', and names the whole source.
                shadows.setdefault(shadow.topic.base, shadow.topic)
        for base, topic in sorted(shadows.items(), key=str):
            if stop.is_set():
                break
            warnings.extend(self._dangers(base, topic))
        more = len(warnings) - _MOST_WARNINGS
        tail = (f"and {more} more warnings about shadow topics; an audit names all shadow topics",) if more > 0 else ()
        return (*warnings[:_MOST_WARNINGS], *tail)

    def _dangers(self, base: TopicName, topic: TopicName) -> Iterator[str]:
        try:
            source = self.endangered_source(topic)
        except SidecarError as error:
            yield f"shadow topic {base}: brokers did not report whether its retention is infinite: {error}"
            return
        if source is not None:
            yield (
                f"shadow topic {base} has no infinite retention that brokers report: a broker that loads it deletes "
                f"ledgers of its source {source}; set infinite retention (pulsar-admin topicPolicies set-retention "
                f"-s -1 -t -1 {base}), or delete it with: pulsar-sidecar topics delete-shadow {base}"
            )

    def _nodes(self, stop: StopSignal) -> Iterator[Node]:
        """The nodes of all persistent topics at a bounded rate; ends early when stopped."""
        every = self._paths()
        per_second = _NODES_PER_SECOND / max(1, self.sidecars())
        while paths := list(islice(every, _NODES_AT_ONCE)):
            yield from (node for node in self.store.read_many(paths) if node is not None)
            if self.clock.wait_seconds(len(paths) / per_second, stop):
                return

    def _paths(self) -> Iterator[str]:
        for root in (PARTITIONED_TOPICS, MANAGED_LEDGERS):
            for tenant in self.store.children(root) or ():
                for namespace in self.store.children(f"{root}/{tenant}") or ():
                    yield from self._paths_below(f"{root}/{tenant}/{namespace}")

    def _paths_below(self, namespace: str) -> Iterator[str]:
        """The topics of a namespace, or of the namespaces below a V1 name's cluster."""
        # Directories are read as well, so that those without topics count for the rate.
        yield namespace
        for name in self.store.children(namespace) or ():
            topics = f"{namespace}/persistent" if name == "persistent" else f"{namespace}/{name}/persistent"
            yield topics
            yield from (f"{topics}/{topic}" for topic in self.store.children(topics) or ())
