"""The report: whole in itself, truthful, and safe with whatever names a cluster has."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.features.audit.results.report import (
    REPORT_LEDGERS,
    REPORT_ROWS,
    ReportRows,
    metrics_text,
    owners_of,
    report_html,
    report_rows_of,
    templates,
)
from pulsar_sidecar.features.audit.results.summaries import (
    AuditSummary,
    Count,
    GuardResult,
    HistoryEntry,
    OffloadSummary,
)
from pulsar_sidecar.features.audit.results.verdicts import AuditVerdict, conclude
from pulsar_sidecar.reports.audit_pages import AGE_LABELS, NO_TENANT, age_label, size_of
from pulsar_sidecar.reports.documents import Limitation
from pulsar_sidecar.reports.formatting import format_age, format_bytes, format_count, format_time
from pulsar_sidecar.reports.pages import PlotItem

from tests.unit.audit.findings import (
    DAY_MS,
    STORE_TIME_MS,
    Rows,
    audit_tables,
    missing,
    offloaded,
    orphan,
    summary,
    unattributed,
    usage,
)

_HOSTILE = '<script>alert("1")</script>&'
_ORPHANS = [orphan(number, tenant=_HOSTILE if number == 3 else "public") for number in range(1, 80)]
_OFFLOAD = OffloadSummary(
    locations=("s3://tiered",),
    findings={"lost": Count(1, 5)},
    uses_by_tenant={_HOSTILE: {"referenced": Count(1, 5)}},
    price_per_gib_month=0.02,
)
_FAILED = GuardResult("share", False, "40 %", "5 %", "too many ledgers at once")


def _page(written: AuditSummary) -> str:
    extract = _extract(
        [orphan(3, topic=f"persistent://public/default/{_HOSTILE}"), *_ORPHANS[4:]],
        [missing(number) for number in range(60)],
        [unattributed(7)],
        [usage(_HOSTILE), usage("b", bytes=5)],
        [offloaded(7, topic=_HOSTILE)],
    )
    return report_html(replace(written, offload=_OFFLOAD), extract, "audits/monday")


def _extract(*rows: Rows) -> ReportRows:
    return report_rows_of(*audit_tables(*rows).values())


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    page = _page(replace(summary(_ORPHANS), missing=60, unattributed=Count(1, 77)))
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen & {"script", "link", "img", "iframe", "object"} == set()
    addresses = [
        value for name, value in tags.attributes if name in {"src", "href", "data", "style"} or "http" in value
    ]
    assert addresses == []
    assert "url(" not in page
    assert "@import" not in page


def test_every_plot_describes_in_words_what_it_shows() -> None:
    history = [
        HistoryEntry(f"a{day}", STORE_TIME_MS + day * DAY_MS, Count(9, 9), Count(day, 5), Count(), day, 0)
        for day in (0, 1)
    ]
    page = _page(replace(summary(_ORPHANS), history=tuple(history)))
    tags = _Tags()
    tags.feed(page)
    assert tags.attributes.count(("role", "img")) == 9
    assert sum(name == "aria-label" and ". " in value and ": " in value for name, value in tags.attributes) == 9
    assert page.count("unchanged since") == 2


def test_unseen_parts_come_right_after_the_verdict() -> None:
    unseen = (Limitation("offloaded objects", 12, "they are not judged"),)
    page = _page(replace(summary(_ORPHANS), unseen=unseen))
    heads = re.findall("<h2>(.*?)</h2>", page)
    assert heads[0] == "Not checked"
    assert "they are not judged" in page
    assert "Everything this version can check was checked" in _page(replace(summary(), unseen=()))


def test_the_plans_hash_and_the_next_command_are_there_only_if_there_is_a_plan() -> None:
    written = summary(_ORPHANS)
    assert written.plan is not None
    assert written.plan.sha256 in _page(written)
    assert "audit apply audits/monday" in _page(written)
    stopped = replace(written, plan=None, guards=(_FAILED,))
    assert written.plan.sha256 not in _page(stopped)
    assert "too many ledgers at once" in _page(stopped)
    assert "FAILED" in _page(stopped)
    empty = replace(written, plan=replace(written.plan, rows=0, bytes=0))
    assert written.plan.sha256 not in _page(empty)


def test_long_tables_are_cut_and_marked_so() -> None:
    page = _page(replace(summary(_ORPHANS), missing=60))
    assert f"{REPORT_ROWS} of 60" in page
    assert f"{REPORT_ROWS} of {len(_ORPHANS)}" in page


def test_many_tenants_become_others() -> None:
    tenants = {f"tenant-{number:02}": Count(1, 100 - number) for number in range(40)}
    page = _page(replace(summary(_ORPHANS), existing_by_tenant=tenants))
    assert "25 others" in page
    assert "tenant-14:" in page
    assert "tenant-15:" not in page


def test_an_extract_holds_the_longest_first_and_no_metadata() -> None:
    rows = [orphan(number, length_bytes=None if number % 5 == 0 else number) for number in range(1, 90)]
    extract = _extract(rows)
    ids = [row["ledger_id"] for row in extract.orphans]
    assert ids == [number for number in range(89, 0, -1) if number % 5] + list(range(5, 90, 5))
    assert "metadata" not in extract.orphans[0]


def test_a_reader_goes_down_from_tenant_to_ledger() -> None:
    rows = [
        orphan(1, tenant="a", namespace="a/x", topic="persistent://a/x/one", length_bytes=5),
        orphan(2, tenant="b", namespace="b/y", topic="persistent://b/y/two", length_bytes=7),
        orphan(3, tenant="b", namespace="b/y", topic="persistent://b/y/two", length_bytes=None),
        orphan(4, tenant="b", namespace="b/z", topic=None, length_bytes=1),
        orphan(5, tenant=None, namespace=None, topic=None, length_bytes=1),
    ]
    used = [usage("persistent://c/n/used", tenant="c", namespace="c/n")]
    owners = owners_of(rows, used)
    assert [owner.name for owner in owners] == ["b", "a", NO_TENANT, "c"]
    largest = owners[0]
    assert (largest.unreferenced.ledgers, size_of(largest.unreferenced)) == (3, "at least 8 B")
    assert [(each.name, [topic.name for topic in each.below]) for each in largest.below] == [
        ("b/y", ["persistent://b/y/two"]),
        ("b/z", ["(no topic)"]),
    ]
    assert [row["ledger_id"] for row in largest.below[0].below[0].rows] == [2, 3]
    assert [row["ledger_id"] for row in owners[2].rows] == [5]
    assert owners[3].used.ledgers == 3


def test_the_way_down_needs_no_script() -> None:
    page = _page(summary(_ORPHANS))
    down = page[page.index("By tenant, namespace and topic") : page.index("<h2>All ledgers</h2>")]
    assert down.count("<details") == down.count("</details>") > 10
    assert re.search(r"<summary><span>public/default</span>\s*<span class=\"muted\">76 unreferenced", down)
    assert "&lt;script&gt;" in down


def test_most_ledgers_of_a_large_audit_can_be_gone_down_to() -> None:
    rows = [orphan(number, topic=f"persistent://public/default/t{number}") for number in range(REPORT_LEDGERS + 9)]
    page = report_html(summary(rows), _extract(rows))
    assert "The largest 2,000 of 2,009 unreferenced ledgers" in page
    assert len(page) < 2_500_000  # it is sent by mail


@pytest.mark.parametrize(
    ("plot", "items"),
    [("bars", [PlotItem("a", 0, "0")]), ("bars", []), ("columns", []), ("line", [PlotItem("d", 0, "0")])],
)
def test_plots_of_nothing_are_plots(plot: str, items: list[PlotItem]) -> None:
    svg = getattr(templates().get_template("plots.html.j2").module, plot)("t", items)
    assert "nan" not in ElementTree.tostring(ElementTree.fromstring(svg.strip()), "unicode")


@pytest.mark.parametrize(
    ("written", "verdict", "next_step"),
    [
        (summary(), AuditVerdict.CLEAN, "nothing to do"),
        (summary(_ORPHANS), AuditVerdict.PLAN, "audit apply DIR"),
        (summary([orphan(1, standing="first-look")]), AuditVerdict.FINDINGS, "--previous DIR"),
        (summary([orphan(1, standing="unproven")]), AuditVerdict.FINDINGS, "audit show DIR"),
        (replace(summary(), missing=1), AuditVerdict.FINDINGS, "audit show DIR"),
        (replace(summary(_ORPHANS), plan=None, guards=(_FAILED,)), AuditVerdict.STOPPED, "this one cannot be applied"),
        (replace(summary(_ORPHANS), guards=(_FAILED,)), AuditVerdict.STOPPED, "this one cannot be applied"),
    ],
)
def test_a_verdict_and_what_to_do_next(written: AuditSummary, verdict: AuditVerdict, next_step: str) -> None:
    conclusion = conclude(written, "DIR")
    assert conclusion.verdict is verdict
    assert next_step in conclusion.next_step


def test_a_sentence_counts_what_is_deletable_and_a_report_says_if_there_is_nothing() -> None:
    assert "1 ledger (size unknown) is" in conclude(summary([orphan(1, length_bytes=None)]), "DIR").sentence
    page = report_html(summary(), ReportRows())
    assert ("There are none." in page, "do not exist" in page) == (True, False)


def test_metrics_are_read_by_prometheus_own_parser() -> None:
    written = replace(summary(_ORPHANS), cluster_name='a"b\\c', missing=2, guards=(_FAILED,))
    families = {family.name: family for family in text_string_to_metric_families(metrics_text(written))}
    samples = {name: [(s.labels, s.value) for s in family.samples] for name, family in families.items()}
    cluster = {"cluster": 'a"b\\c'}
    assert samples["pulsar_sidecar_audit_timestamp_seconds"] == [(cluster, STORE_TIME_MS / 1000)]
    assert samples["pulsar_sidecar_audit_missing_ledger_references"] == [(cluster, 2)]
    assert samples["pulsar_sidecar_audit_orphan_ledgers"] == [({**cluster, "standing": "condemned"}, len(_ORPHANS))]
    assert samples["pulsar_sidecar_audit_guard_passed"] == [({**cluster, "guard": "share"}, 0)]
    assert samples["pulsar_sidecar_audit_plan_ledgers"] == [(cluster, len(_ORPHANS))]


def test_sizes_ages_counts_and_times_in_words() -> None:
    assert [format_bytes(size) for size in (None, 0, 1023, 1024, 1536, 2**40, 2**75)] == [
        "unknown", "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 TiB", "32768.0 EiB",
    ]  # fmt: skip
    assert [format_age(age) for age in (None, 5, 59_999, 3_600_000, 2 * DAY_MS)] == [
        "unknown", "less than a second", "59 seconds", "1 hour", "2 days",
    ]  # fmt: skip
    assert [format_count(count, "ledger") for count in (0, 1, 1234)] == ["0 ledgers", "1 ledger", "1,234 ledgers"]
    many = [format_count(2, noun) for noun in ("entry", "copy", "day", "batch", "index", "bookie")]
    assert many == ["2 entries", "2 copies", "2 days", "2 batches", "2 indexes", "2 bookies"]
    assert format_count(2, "topic or partition", "topics or partitions") == "2 topics or partitions"
    assert format_time(0) == "1970-01-01 00:00:00 UTC"
    assert format_time(None) == "unknown"


def test_every_age_has_one_of_the_labels() -> None:
    labels = [age_label(age) for age in (None, 0, DAY_MS - 1, DAY_MS, 10**13)]
    assert labels == ["unknown", "under 1 hour", "1 to 24 hours", "1 to 3 days", "over 365 days"]
    assert set(labels) <= set(AGE_LABELS)
