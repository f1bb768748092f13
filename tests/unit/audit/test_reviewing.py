"""Looking at an audit: at a glance, row by row, one ledger in sentences; and tidying up behind it."""

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pulsar_sidecar.adapters.parquet.directories import archived_below, remove
from pulsar_sidecar.adapters.parquet.inputs import AuditTables
from pulsar_sidecar.features.audit.pruning import ArchivedDirectory, reasons_to_keep
from pulsar_sidecar.features.audit.requests import GroupColumn, RowsRequest
from pulsar_sidecar.features.audit.results.answers import RowGroup, TableRows
from pulsar_sidecar.features.audit.results.show import (
    TABLES,
    chosen_rows,
    counted_columns,
    counted_rows,
    explain,
    groups_text,
    overview,
    rows_text,
)
from pulsar_sidecar.features.audit.results.summaries import Count, GuardResult, Input
from pulsar_sidecar.features.audit.results.tables import OrphanCause, OrphanStatus, Table
from pulsar_sidecar.reports.documents import Limitation

from tests.unit.audit.findings import (
    DAY_MS,
    STORE_TIME_MS,
    audit_tables,
    missing,
    orphan,
    orphan_table,
    summary,
    unattributed,
    usage,
)
from tests.unit.audit.written import write_audit

_ORPHANS = [orphan(4, row=0), orphan(9, standing="too-young", kind="cursor", cursor_name="sub", tenant="b")]


# --- at a glance ---------------------------------------------------------------------------------------------------


def test_the_overview_names_everything_that_decides() -> None:
    written = replace(
        summary(_ORPHANS),
        missing=3,
        unattributed=Count(2, 2048),
        guards=(
            GuardResult("share", True, "0.2 %", "5 %", "at once"),
            GuardResult("same-cluster", False, "a", "b", "differ"),
        ),
        unseen=(Limitation("offloaded objects", 12, "they are not judged"),),
    )
    text = overview(written, "audits/monday")
    assert text.startswith(f"Audit {written.audit_id} of standalone, as of 2026-07-06 12:00:00 UTC (embedded engine)")
    assert "STOPPED: 2 unreferenced ledgers, 3 references to ledgers that do not exist, 2 ledgers whose owner" in text
    assert "FAILED  same-cluster: a (limit b); differ" in text
    assert "passed  share: 0.2 % (limit 5 %); at once" in text
    assert "offloaded objects: 12; they are not judged" in text
    for line in ("  too-young                                 1", "  cursor                                    1"):
        assert line in text


def test_many_tenants_are_cut() -> None:
    tenants = {f"t{number:02}": Count(1, number) for number in range(30)}
    text = overview(replace(summary(_ORPHANS), orphans_by_tenant=tenants), "a")
    assert "  20 others" in text
    assert "  t20" in text
    assert "  t19" not in text


@pytest.mark.parametrize("rows", [[], _ORPHANS], ids=["empty", "filled"])
def test_shown_tables_omit_the_metadata_column(tmp_path: Path, rows: list[dict[str, object]]) -> None:
    tables = AuditTables(tmp_path, write_audit(tmp_path, rows))
    for table in (Table.ORPHAN_LEDGERS, Table.UNATTRIBUTED_LEDGERS):
        whole, shown = tables.table(table), tables.shown(table)
        assert shown == whole.drop_columns(["metadata"])
    assert tables.shown(Table.ORPHAN_LEDGERS, {"ledger_id": 9}).num_rows == (1 if rows else 0)


def counted(table: pa.Table, wanted: RowsRequest) -> list[RowGroup]:
    """Count rows, by the needed columns alone as by all."""
    found = counted_rows(table, wanted)
    assert counted_rows(table.select(counted_columns(table.schema.names, wanted)), wanted) == found
    return found


def test_rows_are_counted_by_a_column() -> None:
    rows = [orphan(1, tenant="a"), orphan(2, tenant="b", length_bytes=None), orphan(3, tenant=None, length_bytes=9)]
    table = orphan_table([*rows, orphan(4, tenant="a", kind="cursor")])
    by_tenant = counted(table, RowsRequest(group_by=GroupColumn.TENANT))
    assert by_tenant == [RowGroup(2, 2005, 0, "a"), RowGroup(1, 9, 0, None), RowGroup(1, None, 1, "b")]
    cursors = RowsRequest({"tenant": "a"}, group_by=GroupColumn.KIND)
    assert counted(table, cursors) == [RowGroup(1, 1004, 0, "cursor"), RowGroup(1, 1001, 0, "data")]
    used = [usage("t1", bytes=5), usage("t2", bytes=7, unknown_size_ledgers=0)]
    usages = audit_tables(usage=used)[Table.LEDGER_USAGE]
    assert counted(usages, RowsRequest(group_by=GroupColumn.TOPIC)) == [
        RowGroup(3, 7, 0, "t2"),
        RowGroup(3, 5, 1, "t1"),
    ]
    assert counted(usages, RowsRequest(group_by=GroupColumn.CAUSE)) == []
    lost = audit_tables(missing=[missing(1), missing(2)])[Table.MISSING_LEDGERS]
    assert counted(lost, RowsRequest(group_by=GroupColumn.NAMESPACE)) == [RowGroup(2, 2468, 0, "public/default")]
    assert "(none)  1        9 B" in groups_text("orphans", "tenant", by_tenant)
    assert groups_text("usage", "cause", []) == "Who uses how much by cause: 0"


def test_rows_as_text() -> None:
    tables = audit_tables(_ORPHANS, [missing(1)], [unattributed(1)], [usage("a", bytes=5), usage("b", loaded=None)])
    texts = {name: rows_text(name, chosen_rows(name, tables[table], RowsRequest())) for name, table in TABLES.items()}
    assert texts["orphans"].splitlines()[0] == "Unreferenced ledgers: 2 of 2"
    assert "persistent://public/default/orders-2, subscription sub" in texts["orphans"]
    assert [line.split()[-1] for line in texts["usage"].splitlines()[2:]] == ["b", "a"]
    assert "cannot read 10 entries" in texts["missing"]
    assert "no component" in texts["unattributed"]
    assert rows_text("orphans", TableRows(0, ())) == "Unreferenced ledgers: 0 of 0"


# --- one ledger ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("standing", OrphanStatus)
def test_an_orphan_is_explained_with_claim_evidence_status_and_what_it_takes(standing: OrphanStatus) -> None:
    row = orphan(4, standing=standing.value, row=0 if standing is OrphanStatus.DELETABLE else None)
    text = explain(summary([row]), 4, orphan=row)
    assert "a data ledger of persistent://public/default/orders-4" in text
    assert "the managed ledger's node does not exist" in text
    assert f"Status: {standing.value}" in text
    assert "Required to be deletable:" in text
    assert ("row 0 of the plan" in text) == (standing is OrphanStatus.DELETABLE)


@pytest.mark.parametrize("cause", OrphanCause)
def test_every_cause_has_its_words(cause: OrphanCause) -> None:
    assert f"Likely cause: {cause.value}: " in explain(summary(), 4, orphan=orphan(4, cause=cause.value))


def test_others_are_explained_too() -> None:
    assert "no plan" in explain(replace(summary(), plan=None), 4, orphan=orphan(4))
    assert "never deletable: its metadata names no component" in explain(summary(), 7, unattributed=unattributed(7))
    text = explain(summary(), 5, missing=[missing(5), missing(5, entries=None)])
    assert "2 nodes in the dump reference it" in text
    assert "(10 entries, 1.2 KiB)" in text
    assert "--dump DIR" in explain(summary(), 5)
    assert "nothing in that dump references it" in explain(summary(), 5, references=[])
    assert "  - /managed-ledgers/x" in explain(summary(), 5, references=["/managed-ledgers/x"])
    assert "report this as a defect" in explain(summary(), 4, orphan=orphan(4), references=["/x"])


# --- tidying up ----------------------------------------------------------------------------------------------------


def _archived(
    name: str, days_ago: float, kind: str = "audit", *, input_digests: tuple[str, ...] = ()
) -> ArchivedDirectory:
    time_ms = STORE_TIME_MS - int(days_ago * DAY_MS)
    return ArchivedDirectory(
        Path(name), kind, "cluster", f"sha-{name}", time_ms, frozenset(f"sha-{each}" for each in input_digests)
    )


def _kept(archived: list[ArchivedDirectory], keep: int, days: float) -> set[str]:
    reasons = reasons_to_keep(archived, keep, int(days * DAY_MS), STORE_TIME_MS)
    assert reasons.keys() == {each.path for each in archived}
    return {str(path) for path, reason in reasons.items() if reason}


def test_the_newest_and_the_young_stay() -> None:
    audits = [_archived(f"a{days}", days) for days in (1, 5, 40, 50, 60)]
    assert _kept(audits, keep=1, days=30) == {"a1", "a5"}
    assert _kept(audits, keep=3, days=0) == {"a1", "a5", "a40"}
    assert _kept(audits[4:], keep=1, days=0) == {"a60"}


def test_kinds_and_clusters_are_counted_apart() -> None:
    others = [_archived("dump", 90, "metadata-dump"), dataclasses.replace(_archived("theirs", 99), cluster="other")]
    assert _kept([_archived("a", 1), *others], keep=1, days=0) == {"a", "dump", "theirs"}


def test_inputs_of_remaining_audits_are_kept() -> None:
    archived = [
        _archived("a1", 1, input_digests=("a2", "d1")),
        _archived("a2", 50, input_digests=("a3", "d2")),
        _archived("a3", 60),
        _archived("d0", 0, "metadata-dump"),
        _archived("d1", 51, "metadata-dump"),
        _archived("d2", 52, "metadata-dump"),
    ]
    assert _kept(archived, keep=1, days=30) == {"a1", "a2", "d0", "d1"}


def test_only_complete_directories_of_ours_are_found(tmp_path: Path) -> None:
    whole = write_audit(tmp_path / "deep" / "whole", _ORPHANS)
    write_audit(tmp_path / "damaged", _ORPHANS)
    (tmp_path / "damaged" / next(iter(whole.files))).unlink()
    write_audit(tmp_path / "unfinished", _ORPHANS)
    (tmp_path / "unfinished" / "summary.json").unlink()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "manifest.json").write_text("{}")
    (tmp_path / "theirs" / "summary.json").write_text("[]")
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    (found,) = archived_below(tmp_path)
    assert (found.path, found.kind, found.time_ms) == (tmp_path / "deep" / "whole", "audit", STORE_TIME_MS)
    remove(found)
    assert not found.path.exists()
    assert list((tmp_path / "deep").iterdir()) == []
    assert (tmp_path / "damaged" / "summary.json").exists()


def test_an_audit_names_its_inputs_by_the_digest_of_their_summary(tmp_path: Path) -> None:
    write_audit(tmp_path / "earlier", _ORPHANS, audit_id="1")
    (earlier,) = archived_below(tmp_path)
    write_audit(tmp_path / "later", _ORPHANS, audit_id="2", inputs={"previous": Input(earlier.sha256, "earlier")})
    found = {each.path.name: each for each in archived_below(tmp_path)}
    assert found["later"].input_digests == {found["earlier"].sha256}
