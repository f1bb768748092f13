"""Deduplication cursors in a dump: nothing but the dump's files is needed."""

from dataclasses import replace
from pathlib import Path

from pulsar_sidecar.adapters.parquet.directories import open_tables
from pulsar_sidecar.adapters.parquet.dumped_deduplication import (
    DumpedDeduplication,
    DumpedDeduplicationSettings,
    DumpedSnapshots,
)
from pulsar_sidecar.audit.sources.manifests import InputKind
from pulsar_sidecar.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.deduplication.inspection.stuck import StuckCursors, StuckReport
from pulsar_sidecar.deduplication.policies import BrokerDeduplication
from pulsar_sidecar.deduplication.stored import StoredDeduplications


def find_stuck_in_dump(
    dump: Path, namespace: str | None, limits: LagLimits, most: int, broker_enabled: bool
) -> StuckReport:
    """The cursors of a dump that are stuck; of a topic without a deduplication cursor nothing is said.

    Raises:
        InvalidInputError: the directory is not a dump, or not what was written.
        NotFoundError: the dump has no such namespace.
    """
    open_tables(dump, InputKind.DUMP)
    nodes, alone = DumpedDeduplication(dump), DumpedSnapshots()
    stored = StoredDeduplications(nodes, alone, alone, alone)
    places = stored.topics.all_places() if namespace is None else stored.topics.places_below(namespace)
    settings = DumpedDeduplicationSettings(nodes, BrokerDeduplication(enabled=broker_enabled))
    report = StuckCursors(stored, settings, None).find(places, limits, most)
    return replace(report, unreadable=(*nodes.unreadable, *report.unreadable))
