"""Ledger deletion and its watch, on the overview."""

from collections.abc import Iterator

from pulsar_sidecar.features.ledger_deletion.pages import leaks
from pulsar_sidecar.features.ledger_deletion.pages.deletions import BASE, HERE, dead_letters_figure, pause_words
from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate, ServiceStatus
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState, WatchMode, WatchStatus
from pulsar_sidecar.reports.formatting import format_age, format_bytes, format_count
from pulsar_sidecar.web.ask import Reading
from pulsar_sidecar.web.overview_parts import Concern, Figure, OverviewPart, Shown
from pulsar_sidecar.web.words import recent_error

_OPEN_LEAKS = (LeakState.LEAKED, LeakState.SETTLING, LeakState.KEPT)


def _deletion(reading: Reading) -> Shown:
    status = reading.parsed(ServiceStatus)
    if status is None:
        return Shown()
    concerns = [*_deletion_concerns(status), *recent_error(status, reading.as_of_ms, "Ledger deletion", HERE)]
    return Shown(concerns, list(_deletion_figures(status)), status.instances)


def _deletion_concerns(status: ServiceStatus) -> Iterator[Concern]:
    if not status.enabled:
        return
    if status.control.paused:
        yield Concern("warn", "Paused", pause_words(status.control), HERE)
    if stuck := status.stuck_topic_deletions:
        yield Concern("bad", "Stuck", f"{format_count(stuck, 'topic deletion')} cannot continue", HERE)
    if letters := status.dead_letters:
        yield Concern("bad", "Dead letters", f"{format_count(letters, 'record')} given up", f"{HERE}/dead-letters")
    if status.inflight is None:
        yield Concern("bad", "Backlog unknown", "brokers do not report the pending deletions", HERE)
    for warning in status.warnings:
        yield Concern("warn", "Warning", warning, HERE)


def _deletion_figures(status: ServiceStatus) -> Iterator[Figure]:
    if not status.enabled:
        yield Figure("Two-phase deletion", "off", HERE, "off", "topicTwoPhaseDeletionEnabled is false")
        return
    inflight, stuck = status.inflight, status.stuck_topic_deletions
    if inflight is None:
        yield Figure("Pending deletions", "unknown", HERE, "bad")
    else:
        kind = "warn" if status.control.paused else "busy" if inflight.count else "good"
        yield Figure("Pending deletions", f"{inflight.count:,}", HERE, kind, _age_and_size(inflight))
    running = f"{status.running_topic_deletions:,}"
    note = f"{stuck:,} stuck" if stuck else None
    yield Figure("Topic deletions", running, f"{HERE}#topics", "bad" if stuck else None, note)
    yield dead_letters_figure(status.dead_letters)
    yield Figure("Namespace deletions", f"{status.running_namespace_deletions:,}", f"{HERE}#namespaces")
    yield Figure("Sidecars", f"{len(status.instances):,}", "/ui/#sidecars")


def _age_and_size(inflight: InflightEstimate) -> str | None:
    if inflight.oldest_age_ms is None:
        return None
    size = "size unknown" if inflight.waiting_bytes is None else format_bytes(inflight.waiting_bytes)
    return f"oldest {format_age(inflight.oldest_age_ms)}, {size}"


def _watch(reading: Reading) -> Shown:
    watch = reading.parsed(WatchStatus)
    if watch is None:
        return Shown()
    if watch.mode is WatchMode.OFF:
        return Shown(figures=[Figure("Leak watch", "off", leaks.PATH, "off")])
    return Shown(list(_watch_concerns(watch)), [_leaked(watch)])


def _watch_concerns(watch: WatchStatus) -> Iterator[Concern]:
    if watch.braked:
        yield Concern("bad", "Brake", watch.braked, leaks.PATH)
    if watch.leaks is None:
        yield Concern("off", "Leaks unknown here", _unknown_leaks(watch), leaks.PATH)
    elif leaked := watch.leaks.get(LeakState.LEAKED, 0):
        yield Concern("warn", "Leaks", f"{format_count(leaked, 'ledger')} without a reference", leaks.PATH)
    if watch.unreadable:
        text = f"{format_count(watch.unreadable, 'node')} could not be read"
        yield Concern("warn", "Unreadable nodes", text, leaks.PATH)


def _leaked(watch: WatchStatus) -> Figure:
    if watch.leaks is None:
        return Figure("Leaked ledgers", "unknown here", leaks.PATH, "off", _unknown_leaks(watch))
    count = sum(watch.leaks.get(state, 0) for state in _OPEN_LEAKS)
    note = None if watch.ledgers is None else f"of {format_count(watch.ledgers, 'ledger')}"
    if note and watch.unlinked:
        note += f"; {watch.unlinked:,} never seen referenced"
    kind = "warn" if watch.leaks.get(LeakState.LEAKED) else "good"
    return Figure("Leaked ledgers", f"{count:,}", leaks.PATH, kind, note)


def _unknown_leaks(watch: WatchStatus) -> str:
    if watch.leader:
        return f"{watch.leader.name} watches for leaks, and lists them"
    return watch.detail or "no sidecar is watching at the moment"


DELETION = OverviewPart("Ledger deletion", f"{BASE}/status", _deletion)
WATCH = OverviewPart("Leak watch", f"{BASE}/watch", _watch)
