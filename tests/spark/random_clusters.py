"""Random small clusters in which anything may be missing, left over, damaged or shared."""

import itertools
import json
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.audit.requests import HOUR_MS
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState, OffloadContext
from pulsar_sidecar.ownership.paths import under_replication_mark_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.unit.audit.audited_clusters import (
    AS_OF_MS,
    BUCKET_KEY,
    PLACE,
    AuditedCluster,
    compaction_row,
    full_cluster,
    segment_row,
)
from tests.unit.audit.stored_copies import DRIVER, stored

POLICIES = (
    None,
    b"no JSON",
    b'{"bundles":{}}',
    b'{"retention_policies":{"retentionTimeInMinutes":-1,"retentionSizeInMB":-1}}',
    b'{"offload_deletion_lag_ms":60000}',
)
NAMES = ("t{}/n/persistent/a", "t{}/n/persistent/b%2Fc-partition-3", "u{}/c/m/persistent/old", "u{}/m/persistent/a.b")
CURSORS = ("sub", "s%2Fub", "__compaction")
TOPICS = ("persistent://t{}/n/a", "persistent://u{}/m/a.b", "persistent://t{}/n/gone")
SCHEMAS = ("t{}/n/a", "u{}/m/a.b")
SUSPECTS = {
    "/admin/partitioned-topics/t{}/n/persistent/a": b'{"partitions":2}',
    "/admin/partitioned-topics/t{}/n/persistent/lost": b'{"partitions":2}',
    "/managed-ledgers/t{}/n/persistent/a-sub__transaction_pending_ack": b"",
    "/managed-ledgers/t{}/n/persistent/lost-sub__transaction_pending_ack": b"",
}
"""Nodes that point to nothing, unless there are topics for them."""
ODD = ("/managed-ledgers/odd", "/schemas/t/n/a", "/managed-ledgers/u", "/new-kind/x", "/stream/b/managed-ledgers")
_IDS = st.one_of(st.integers(11, 40), st.sampled_from([2**20 - 1, 2**20, 2**31, 2**40 + 5]))
_IDS_OF_A_CLUSTER = 64
_ATTEMPTS = st.integers(1, 4)


class RandomCluster:
    """One that shares a dump with others: its names and its ledgers are its own."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any], shared: AuditedCluster, number: int) -> None:
        self._draw = draw
        self._shared = shared
        self._number = number
        self._ids = _IDS.map(lambda ledger_id: ledger_id + number * _IDS_OF_A_CLUSTER)
        self._names, self._topics, self._schemas = (
            [each.format(number) for each in some] for some in (NAMES, TOPICS, SCHEMAS)
        )

    def add(self) -> None:
        """Add it to the dump."""
        draw, shared = self._draw, self._shared
        for name in draw(st.sets(st.sampled_from(self._names))):
            self._topic(f"/managed-ledgers/{name}")
        if draw(st.booleans()):
            # The name that one of the topics is a partition of.
            shadow = json.dumps({"partitions": 4, "properties": {SHADOW_SOURCE: self._topics[0]}}).encode()
            node = f"/admin/partitioned-topics/t{self._number}/n/persistent/b%2Fc"
            shared.nodes[node] = draw(st.sampled_from([shadow, shadow[:-1]]))
        for path in draw(st.sets(st.sampled_from(sorted(SUSPECTS)))):
            shared.nodes[path.format(self._number)] = SUSPECTS[path]
        for ledger_id in draw(st.sets(self._ids, max_size=2)):
            shared.nodes[under_replication_mark_path(LedgerId(ledger_id))] = b""
        for schema in draw(st.sets(st.sampled_from(self._schemas))):
            shared.nodes[f"/schemas/{schema}"] = schema_locator_bytes(draw(st.lists(self._ids, min_size=1, max_size=3)))
        shared.log_segments.append(segment_row(draw(st.one_of(st.none(), self._ids))))
        for tenant in draw(st.sets(st.sampled_from(["t{}", "u{}"]))):
            policies = draw(st.sampled_from(["policies", "local-policies"]))
            shared.nodes[f"/admin/{policies}/{tenant.format(self._number)}"] = b"{}"
        for _ in range(draw(st.integers(0, 6))):
            self._copy()
        own = draw(st.sets(self._ids, max_size=15))
        for ledger_id in own:
            self._ledger(ledger_id)
        shared.unlisted |= draw(st.sets(st.sampled_from(sorted(own)), max_size=1)) if own else set()
        shared.listed_too |= draw(st.sets(self._ids, max_size=1)) - own

    def _topic(self, path: str) -> None:
        draw, shared = self._draw, self._shared
        ids = draw(st.lists(self._ids, unique=True, max_size=5))
        offloaded = {ledger_id: self._context() for ledger_id in ids if draw(st.integers(0, 4)) == 0}
        source = {SHADOW_SOURCE: self._topics[0]} if draw(st.integers(0, 4)) == 0 else None
        shared.nodes[path] = managed_ledger_bytes(
            ids, offloaded=offloaded, terminated=draw(st.booleans()), properties=source
        )
        policies = draw(st.sampled_from(POLICIES))
        if policies is not None:
            namespace = path.removeprefix("/managed-ledgers/").split("/persistent")[0]
            shared.nodes[f"/admin/policies/{namespace}"] = policies
        for cursor in draw(st.sets(st.sampled_from(CURSORS))):
            ledger, compacted, bucket = (draw(st.one_of(st.none(), self._ids)) for _ in range(3))
            buckets = {} if bucket is None else {BUCKET_KEY: bucket}
            value = cursor_bytes(ledger, compacted_ledger=compacted, buckets=buckets)
            shared.nodes[f"{path}/{cursor}"] = value
            if cursor == "__compaction" and draw(st.booleans()):
                state = draw(st.sampled_from(["read", "no-ledger", "no-cursor", "ledger-gone", "unreadable"]))
                entry = {} if state == "read" else {"entry": None}
                shared.cursor_ledgers.append(
                    compaction_row(draw(self._ids), f"{path}/{cursor}", state=state, cursor_value=value, **entry)
                )

    def _context(self) -> OffloadContext:
        """Return a context at a place that was listed, at another one, or at none."""
        draw = self._draw
        flags = {name: draw(st.booleans()) for name in ("complete", "bookkeeper_deleted")}
        driver, metadata = draw(st.sampled_from([("S3", DRIVER), ("S3", {**DRIVER, "bucket": "other"}), ("s3", {})]))
        at_ms = draw(st.sampled_from([0, AS_OF_MS - HOUR_MS, AS_OF_MS - 5 * HOUR_MS]))
        return OffloadContext(0, draw(_ATTEMPTS), driver, metadata, offloaded_ms=at_ms, **flags)

    def _copy(self) -> None:
        """Add some parts of a copy, which a list may name."""
        draw = self._draw
        changed = {
            "managed_ledger": draw(st.sampled_from([*self._names, "no/topic", None])),
            "cluster": draw(st.sampled_from(["local", "local", "local", "another", None])),
            "place": draw(st.sampled_from([PLACE, PLACE, "s3://elsewhere"])),
            "modified_ms": AS_OF_MS - draw(st.sampled_from([1, 71, 500])) * HOUR_MS,
        }
        ledger_id, attempt = draw(self._ids), draw(_ATTEMPTS)
        assert self._shared.objects is not None
        for role in draw(st.sets(st.sampled_from(["data", "index"]), min_size=1)):
            row = stored(ledger_id, attempt, role, **changed)
            if draw(st.integers(0, 4)) == 0:
                row |= draw(st.sampled_from([
                    {"size_bytes": 7},
                    {"damage": "cut"},
                    {"role": None, "ledger_id": None, "attempt": None},
                    {"managed_ledger": "t/n/persistent/topic"},
                ]))  # fmt: skip
            self._shared.objects.append(row)

    def _ledger(self, ledger_id: int) -> None:
        draw, shared = self._draw, self._shared
        name, topic = draw(st.sampled_from([*self._names, "no/topic"])), draw(st.sampled_from(self._topics))
        custom = draw(
            st.sampled_from([
                {},
                data_custom_metadata(name),
                cursor_custom_metadata(name, "sub"),
                schema_custom_metadata(draw(st.sampled_from(self._schemas))),
                compacted_custom_metadata(topic),
                bucket_custom_metadata(topic, "sub", BUCKET_KEY),
            ])
        )  # fmt: skip
        age_ms = draw(st.sampled_from([1, 71, 500])) * HOUR_MS
        shared.ledger(ledger_id, custom, state=draw(st.sampled_from(list(LedgerState))), ctime_ms=AS_OF_MS - age_ms)
        if draw(st.integers(0, 9)) == 0:
            damages = [{"value": b"garbage"}, {"value": None, "unreadable": "no"}]
            shared.ledgers[ledger_id] |= draw(st.sampled_from(damages))


def damaged(random: Random, cluster: AuditedCluster) -> None:
    """Maybe something at a place or of an unknown kind, which protects ledgers of all its clusters."""
    for path in ODD:
        if random.random() < 0.12:
            cluster.nodes[path] = random.choice([b"garbage", None, b"", managed_ledger_bytes([12, 13])])


def changed(random: Random, cluster: AuditedCluster) -> None:
    """The same clusters a day later."""
    cluster.as_of_ms += 24 * HOUR_MS
    for ledger_id in sorted(cluster.ledgers):
        if random.random() < 1 / 6:
            cluster.ledgers[ledger_id]["mzxid"] = 900


def random_clusters(count: int) -> AuditedCluster:
    cluster = full_cluster()
    cluster.objects, cluster.places = [], (PLACE, "s3://elsewhere")
    # So many that no guard withholds each plan.
    cluster.living(range(10**6, 10**6 + 40 * count))
    numbers = itertools.count(1)

    @settings(max_examples=count, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.data())
    def add(data: st.DataObject) -> None:
        RandomCluster(data.draw, cluster, next(numbers)).add()

    add()
    return cluster
