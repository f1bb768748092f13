"""Periodic search, for the status, for shadow topics (PIP-180) that delete their sources' ledgers when loaded.

Invariant: an unfinished or failed search is reported as such, never as "there are none".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_refusals import Shadows
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count

log = structlog.get_logger("ledger-deletion")

_SEARCH_EVERY_SECONDS = 600.0
_AFTER_FAILURE_SECONDS = 30.0
_MOST_WARNINGS = 100
_NOT_KNOWN_YET = (
    "shadow topics are not known yet: the first search for those that endanger their sources has not finished"
)


@dataclass(slots=True)
class ShadowWatch:
    """Results of the last search; `run` is a loop for its own thread."""

    shadows: Shadows
    endangered_source: Callable[[TopicName], str | None]
    clock: Clock
    _found: tuple[str, ...] = ()
    _ended_at: str | None = None
    _warnings: tuple[str, ...] = (_NOT_KNOWN_YET,)

    def warnings(self) -> tuple[str, ...]:
        """Return, from memory, one warning for each shadow that endangers its source, or why they are unknown."""
        return self._warnings

    def run(self, stop: StopSignal) -> None:
        """Search until stopped."""
        while not stop.is_set():
            try:
                found = self._search(stop)
            except SidecarError as error:
                if stop.is_set():
                    return
                self._report_failure(str(error))
                self.clock.wait_seconds(_AFTER_FAILURE_SECONDS, stop)
                continue
            except Exception:
                # A defect must not leave the last search's result in place forever.
                self._report_failure("an unexpected failure; see the log")
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
                log.warning("a shadow topic may endanger its source", warning=warning)
        if before and not warnings:
            log.info("no shadow topic endangers its source")

    def _search(self, stop: StopSignal) -> tuple[str, ...]:
        found, unread = self.shadows.all_shadows()
        warnings = [node.reason for node in unread]
        # By path: a partitioned topic's own node comes before its partitions', and names the whole source.
        shadows: dict[TopicName, TopicName] = {}
        for shadow in found:
            shadows.setdefault(shadow.topic.base, shadow.topic)
        for base, topic in sorted(shadows.items(), key=str):
            if stop.is_set():
                break
            warnings.extend(self._dangers(base, topic))
        more = len(warnings) - _MOST_WARNINGS
        tail = (
            (f"and {format_count(more, 'more warning')} about shadow topics; an audit names all shadow topics",)
            if more > 0
            else ()
        )
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
