"""What the first pass reports beside ids: few rows, of `first_pass.FACTS`, that the driver reads whole."""

from collections.abc import Sequence

from pulsar_sidecar.audit.engine.admin_nodes import dangers
from pulsar_sidecar.audit.engine.decoding import unread_compaction_cursors
from pulsar_sidecar.audit.engine.protections import Protection, Scope, UnreadableNode
from pulsar_sidecar.audit.results.summaries import Danger
from pulsar_sidecar.ledger_ownership.shadows import Shadow
from pulsar_sidecar.model.names import topic_of_managed_ledger
from pyspark.sql import Row

from pyspark_jobs.orphan_ledgers import first_pass

REFERENCES = (first_pass.OTHER, first_pass.UNSIZED)
"""The tags of `first_pass.OTHERS`."""


def protection_of(reported: Sequence[Row]) -> Protection:
    """What was not read."""
    unreadable_nodes = [
        UnreadableNode(row["path"], Scope(row["kind"]), row["reason"])
        for row in reported
        if row["tag"] == first_pass.UNREADABLE
    ]
    unread = [row["path"] for row in reported if row["tag"] == first_pass.COMPACTION]
    tenants = [row["path"] for row in reported if row["tag"] == first_pass.TENANT]
    return Protection([*unreadable_nodes, *unread_compaction_cursors(unread, ())], tenants)


def shadows_of(reported: Sequence[Row]) -> list[Shadow]:
    """Shadow topics, partitioned ones by their own names."""
    # By the managed ledger's name: a full name with a slash in its last part reads like a V1 topic's.
    named = (
        (topic_of_managed_ledger(row["path"]), row["reason"]) for row in reported if row["tag"] == first_pass.SHADOW
    )
    return [Shadow(topic, source) for topic, source in named if topic is not None]


def dangers_of(reported: Sequence[Row]) -> tuple[Danger, ...]:
    """Shadow topics that endanger their sources."""
    return dangers(
        shadows_of(reported), {row["path"]: row["reason"] for row in reported if row["tag"] == first_pass.RETENTION}
    )


def unsized_references(reported: Sequence[Row]) -> int:
    """How many there are whose ledgers' sizes are BookKeeper's to tell, with repetitions."""
    return sum(row["ledgers"] for row in reported if row["tag"] in REFERENCES)


def log_segments_unread_of(reported: Sequence[Row]) -> int:
    """DistributedLog's records that name no ledger."""
    return sum(row["ledgers"] or 0 for row in reported if row["tag"] == first_pass.UNREAD and row["path"] is None)
