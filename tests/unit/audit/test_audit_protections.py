"""Protection of the ledgers that unreadable or unknown nodes may reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.features.audit.results.tables import Table
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.ownership.migration import MIGRATION

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
)
from tests.unit.audit.audited_clusters import (
    BUCKET_KEY,
    COMPACTION,
    MANAGED_LEDGER,
    TOPIC,
    TOPIC_NODE,
    AuditedCluster,
    Auditor,
    compaction_row,
    full_cluster,
    segment_row,
)

ORPHAN = 50


def orphans_of_every_kind(cluster: AuditedCluster) -> dict[int, str]:
    cluster.ledger(50)
    cluster.ledger(51, cursor_custom_metadata(MANAGED_LEDGER, "sub"))
    cluster.ledger(52, schema_custom_metadata("t/n/topic"))
    cluster.ledger(53, compacted_custom_metadata(TOPIC))
    cluster.ledger(54, bucket_custom_metadata(TOPIC, "sub", BUCKET_KEY))
    cluster.ledger(55, data_custom_metadata("t/n/persistent/other"))
    cluster.ledger(56, schema_custom_metadata("t/n/other"))
    # So many that damage does not leave most ledgers unreferenced.
    cluster.living(range(300, 320))
    return dict.fromkeys(range(50, 57), "condemned")


@pytest.fixture(scope="module")
def first_look(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """First audit of an undamaged cluster with these orphans."""
    cluster = full_cluster()
    orphans_of_every_kind(cluster)
    return Auditor(tmp_path_factory.mktemp("first-look")).audit(cluster).directory


@pytest.mark.parametrize(("foreign", "is_named"), [
    *((each, False) for each in ((), ("/other",), ("/new-kind/x/y",), ("/new",))),
    *(((each,), True) for each in ("/new-kind", "/new-kind/", "/new-kind/x")),
])  # fmt: skip
def test_nodes_of_other_programs_must_be_named(
    auditor: Auditor, cluster: AuditedCluster, first_look: Path, foreign: tuple[str, ...], is_named: bool
) -> None:
    expected = orphans_of_every_kind(cluster)
    cluster.nodes |= {"/new-kind/x": b"data", "/new-kind/x/z": b"data"}
    auditor.policy = replace(auditor.policy, foreign_subtrees=foreign)
    found = auditor.a_day_later(cluster, first_look)
    assert {found.standings[ledger_id] for ledger_id in expected} == {"condemned" if is_named else "unproven"}
    assert ("--foreign-subtree /new-kind" in found.rows(Table.ORPHAN_LEDGERS)[0]["reason"]) is not is_named


@pytest.mark.parametrize("foreign", ["/", "//", "hbase", ""])
def test_the_whole_store_cannot_be_foreign(auditor: Auditor, cluster: AuditedCluster, foreign: str) -> None:
    auditor.policy = replace(auditor.policy, foreign_subtrees=(foreign,))
    with pytest.raises(InvalidInputError, match="is not the path of a subtree"):
        auditor.audit(cluster)


@pytest.mark.parametrize(("damaged", "protected"), [
    ({"/managed-ledgers/t/n/persistent/third": b"garbage"}, {50, 55}),
    ({"/managed-ledgers/t/n/persistent/third": None}, {50, 55}),
    ({TOPIC_NODE + "/third": b"garbage"}, set()),
    ({TOPIC_NODE + "/sub": b"garbage"}, {51, 54}),
    ({TOPIC_NODE + "/sub": b""}, {51, 54}),
    ({TOPIC_NODE + "/sub": managed_ledger_bytes([4, 5])}, {51, 54}),
    ({TOPIC_NODE + "/sub": None}, {51, 54}),
    ({COMPACTION: None}, {53}),
    ({"/managed-ledgers/t/n": None}, {50, 51, 53, 54, 55}),
    ({"/managed-ledgers": None}, {50, 51, 53, 54, 55}),
    ({"/managed-ledgers/odd": b"garbage"}, set(range(50, 57))),
    ({"/managed-ledgers/a/b/c/d/e/f/g/h": b"garbage"}, set(range(50, 57))),
    ({"/managed-ledgers/t/c/persistent/persistent/x": b"garbage"}, set(range(50, 57))),
    ({"/schemas/t/n/topic": b"garbage"}, {52}),
    ({"/schemas/t/n/topic": b""}, {52}),
    ({"/schemas/t/n": b"", "/schemas/t": b"", "/schemas": b""}, set()),
    ({"/schemas/t/n": None}, {52, 56}),
    ({"/schemas": None}, {52, 56}),
    ({"/new-kind/x": managed_ledger_bytes([50])}, set(range(50, 57))),
    ({"/new-kind/x": None}, set(range(50, 57))),
    ({MIGRATION: b'{"phase":"COMPLETED","targetUrl":"oxia://o:6648/n"}'}, set(range(50, 57))),
    ({MIGRATION: None}, set(range(50, 57))),
    ({MIGRATION: b'{"phase":"FAILED","targetUrl":"oxia://o:6648/n"}'}, set()),
    ({"/pulsar/migration-coordinator/participants/id-0000000001": b""}, set()),
    ({"/": b"", "/new-kind": b"", "/loadbalance/leader": b"{}", "/counters": None, "/pulsar-sidecar/a": b"{}"}, set()),
])  # fmt: skip
def test_unreadable_nodes_protect_ledgers_they_may_reference(
    auditor: Auditor, cluster: AuditedCluster, first_look: Path, damaged: dict[str, bytes | None], protected: set[int]
) -> None:
    expected = orphans_of_every_kind(cluster)
    cluster.nodes.update(damaged)
    found = auditor.a_day_later(cluster, first_look)
    standings = {ledger_id: found.standings[ledger_id] for ledger_id in expected}
    assert standings == expected | dict.fromkeys(protected, "unproven")
    assert found.summary.unseen or not protected
    # The damaged node's own references are protected too.
    assert not {row["ledger_id"] for row in found.rows(Table.ORPHAN_LEDGERS) if row["standing"] == "condemned"} & set(
        range(1, 11)
    )


@pytest.mark.parametrize("rows", [
    [],
    [compaction_row(9, state="unreadable", entry=None, unreadable="too few bookies")],
    [compaction_row(9, state="ledger-gone", entry=None)],
    [compaction_row(9, entry=b"garbage")],
    [compaction_row(9, cursor_value=b"garbage")],
], ids=["no-row", "unreadable", "gone", "entry", "cursor"])  # fmt: skip
def test_a_compaction_cursor_that_was_not_read_protects_compacted_ledgers(
    auditor: Auditor, cluster: AuditedCluster, rows: list[dict[str, Any]]
) -> None:
    expected = orphans_of_every_kind(cluster)
    cluster.ledger(57, compacted_custom_metadata("persistent://t/n/other"))
    cluster.cursor_ledgers = rows
    standings = auditor.twice(cluster).standings
    assert {ledger_id: standings[ledger_id] for ledger_id in expected} == expected | {53: "unproven"}
    assert standings[57] == "condemned"
    assert standings.get(9, "unproven") == "unproven"


def test_compacted_ledgers_of_every_reading_count(auditor: Auditor, cluster: AuditedCluster) -> None:
    for ledger_id in (20, 21, 22, 23):
        cluster.ledger(ledger_id, compacted_custom_metadata(TOPIC))
    cluster.nodes[COMPACTION] = cursor_bytes(cursor_ledger=6, compacted_ledger=20)
    cluster.cursor_ledgers = [
        compaction_row(9),
        compaction_row(21),
        compaction_row(None, state="no-ledger", entry=None, cursor_value=cursor_bytes(compacted_ledger=22)),
        compaction_row(None, state="no-cursor", entry=None, cursor_value=None),
    ]
    assert set(auditor.twice(cluster).orphans) == {23}


def test_unproven_ledger_has_no_first_sighting(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(ORPHAN)
    cluster.nodes["/managed-ledgers/odd"] = b"garbage"
    first = auditor.audit(cluster)
    assert first.orphans[ORPHAN]["first_seen_ms"] is None
    del cluster.nodes["/managed-ledgers/odd"]
    assert auditor.a_day_later(cluster, first.directory).standings == {ORPHAN: "first-look"}


def test_records_of_distributed_log_that_are_not_understood_are_named(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    cluster.log_segments.append(segment_row(None, unreadable="this is no record"))
    assert [each.what for each in auditor.audit(cluster).summary.unseen] == [
        "records of DistributedLog that were not understood"
    ]
