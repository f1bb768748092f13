"""Facts of nodes below ``/admin``: tenants, policies of namespaces, and shadow topics that endanger their sources.

The list of a shadow (PIP-180) holds its source's ledgers, and a 4.0.8 broker that has it loaded trims them by the
shadow's own retention and cursors: without infinite retention it deletes ledgers that the source still needs.
Invariant: the audit asserts nothing about a policy that a dump does not hold. A namespace's retention and offload
deletion lag are in its policies; a topic's own are events on ``__change_events``, and a broker's defaults are in its
configuration.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.engine.leftover_nodes import partitioned_topics
from pulsar_sidecar.features.audit.results.summaries import Danger
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.ownership.offload_locations import own_deletion_lag_ms
from pulsar_sidecar.ownership.paths import PARTITIONED_TOPICS, POLICIES
from pulsar_sidecar.ownership.protections import Scope, UnreadableNode
from pulsar_sidecar.ownership.shadows import Shadow, shadow_at
from pulsar_sidecar.reports.formatting import format_count

INFINITE: Final = "infinite"
UNSET: Final = "not set, so the brokers' default applies"
UNREADABLE: Final = "unknown, because its policies cannot be read"
_POLICIES: Final = f"{POLICIES}/"
_FOREVER: Final = -1
_TENANT: Final = r"^/admin/(policies|local-policies)/[^/]+$"
"""Local policies count, since policies may be in a configuration store of their own."""


@dataclass(frozen=True, slots=True)
class AdminFacts:
    """Facts that nodes below ``/admin`` hold.

    ``retentions`` are those of namespaces' policies, by ``tenant/namespace``, and so are ``offload_lags_ms``, with None
    where the brokers' applies; the unreadable nodes are of partitioned topics that may be shadows.
    """

    tenants: tuple[str, ...]
    shadows: tuple[Shadow, ...]
    retentions: Mapping[str, str]
    offload_lags_ms: Mapping[str, int | None]
    unreadable_nodes: tuple[UnreadableNode, ...]
    partitioned_topics: tuple[str, ...]


def admin_facts(nodes: pa.RecordBatch) -> AdminFacts:
    """Return tenants, partitioned shadows, and namespaces' retentions from nodes below ``/admin``."""
    paths = nodes.column("path")
    tenants = paths.filter(pc.match_substring_regex(paths, _TENANT)).to_pylist()
    partitioned = nodes.filter(pc.starts_with(paths, f"{PARTITIONED_TOPICS}/"))
    policies = nodes.filter(pc.starts_with(paths, _POLICIES)).select(["path", "value"]).to_pylist()
    namespaces = {
        row["path"].removeprefix(_POLICIES): _document(row["value"])
        for row in policies
        if row["path"].count("/") > _POLICIES.count("/")
    }
    shadows, unreadable = [], []
    for row in partitioned.select(["path", "value"]).to_pylist():
        try:
            shadows.append(shadow_at(row["path"], row["value"] or b""))
        except UndecodableError as error:
            unreadable.append(UnreadableNode(row["path"], Scope.NOTHING, str(error)))
    return AdminFacts(
        tuple(path.rpartition("/")[2] for path in tenants),
        tuple(shadow for shadow in shadows if shadow is not None),
        {name: _retention(document) for name, document in namespaces.items()},
        {name: own_deletion_lag_ms(document) for name, document in namespaces.items() if document is not None},
        tuple(unreadable),
        tuple(partitioned_topics(partitioned.column("path").to_pylist())),
    )


def dangers(shadows: Iterable[Shadow], retentions: Mapping[str, str]) -> tuple[Danger, ...]:
    """Return a danger for each shadow topic whose namespace does not retain everything; partitions count together."""
    # A partitioned topic's own node comes before those of its partitions, and names the whole source.
    ordered = sorted(shadows, key=lambda shadow: (str(shadow.topic), shadow.source), reverse=True)
    topics = {str(shadow.topic.base): shadow for shadow in ordered}
    return tuple(
        Danger(topic, _why(shadow, retentions.get(shadow.topic.namespace)), _REMEDY)
        for topic, shadow in sorted(topics.items())
        if retentions.get(shadow.topic.namespace) != INFINITE
    )


_REMEDY: Final = (
    "set infinite retention on the shadow at once (pulsar-admin topicPolicies set-retention -t -1 -s -1 TOPIC), or "
    "remove it with pulsar-sidecar topics delete-shadow TOPIC"
)


def _why(shadow: Shadow, retention: str | None) -> str:
    of_namespace = retention or "unknown, because its policies are not in the dump or cannot be read"
    return (
        f"a shadow of {shadow.source}: its own trimming deletes the source's ledgers unless its retention is infinite; "
        f"its namespace's retention is {of_namespace}; the topic's own retention is unknown, because a dump "
        "does not contain it"
    )


def _document(value: bytes | None) -> Mapping[str, Any] | None:
    try:
        document = json.loads(value or b"")
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _retention(policies: Mapping[str, Any] | None) -> str:
    if policies is None:
        return UNREADABLE
    retention = policies.get("retention_policies")
    if retention is None:
        return UNSET
    try:
        minutes, megabytes = retention["retentionTimeInMinutes"], retention["retentionSizeInMB"]
    except (KeyError, TypeError):
        return UNREADABLE
    return INFINITE if minutes == megabytes == _FOREVER else f"{format_count(minutes, 'minute')} and {megabytes} MB"
