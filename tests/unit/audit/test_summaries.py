"""A summary is read exactly as it was written, and nothing else is read as one."""

import json
import re
from typing import Any

import pytest
from msgspec.structs import replace
from pulsar_sidecar.features.audit.results.summaries import AuditSummary, Count, parse_summary
from pulsar_sidecar.model.errors import InvalidInputError

from tests.unit.audit.findings import missing, orphan, summary

_ORPHANS = [orphan(4), orphan(9, standing="too-young", kind="cursor", length_bytes=None, tenant=None)]
_ABSENT = object()


def _document(written: AuditSummary) -> Any:
    return json.loads(json.dumps(written.document()))


@pytest.mark.parametrize(
    "written",
    [
        summary(_ORPHANS),
        summary(),
        summary(plan=None, cluster_name=None, history=(), files={"orphan_ledgers/audit_id=1/part-0.parquet": "c" * 64}),
    ],
)
def test_summary_round_trip(written: AuditSummary) -> None:
    assert parse_summary(_document(written)) == written


def test_json_has_camel_case_names_and_an_envelope() -> None:
    document = _document(summary(_ORPHANS))
    assert document["kind"] == "audit"
    assert document["formatVersion"] == 2
    assert document["complete"] is True
    assert document["orphansByKind"] == {
        "cursor": {"ledgers": 1, "bytes": None, "unknownSizeLedgers": 1},
        "data": {"ledgers": 1, "bytes": 1004, "unknownSizeLedgers": 0},
    }
    assert document["inputs"]["dump"]["storeTimeMs"] == summary().store_time_ms
    assert document["plan"]["rows"] == 1


def test_a_summary_without_unknown_sizes_is_still_read() -> None:
    written = summary([orphan(4)])
    earlier = without_unknown_sizes(_document(written))
    assert earlier["plan"] == {"rows": 1, "bytes": 1004, "sha256": written.plan and written.plan.sha256}
    assert parse_summary({**earlier, "formatVersion": 1}) == written


def test_a_summary_of_an_earlier_build_lacks_what_it_did_not_look_for() -> None:
    document = _document(summary())
    del document["dangers"], document["leftoverNodes"], document["offload"]
    assert parse_summary(document) == summary()


def without_unknown_sizes(part: Any) -> Any:
    if isinstance(part, list):
        return [without_unknown_sizes(each) for each in part]
    if isinstance(part, dict):
        return {name: without_unknown_sizes(each) for name, each in part.items() if name != "unknownSizeLedgers"}
    return part


def test_two_summaries_of_one_audit_are_the_same_text() -> None:
    counts = {"condemned": Count(1, 2), "changed": Count(3, 4)}
    one = replace(summary(), orphans=counts)
    other = replace(summary(), orphans=dict(reversed(counts.items())))
    assert json.dumps(one.document()) == json.dumps(other.document())


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("complete",), False, "not complete"),
        (("formatVersion",), 3, "upgrade first"),
        (("kind",), "metadata-dump", "not the summary"),
        (("engine",), "duckdb", "`$.engine`"),
        (("auditId",), 5, "Expected `str`, got `int` - at `$.auditId`"),
        (("references",), True, "Expected `int`, got `bool` - at `$.references`"),
        (("orphans", "condemned", "bytes"), "7", "got `str` - at `$.orphans[...].bytes`"),
        (("orphans", "condemned", "rows"), 7, "unknown field `rows` - at `$.orphans[...]`"),
        (("guards", 0, "passed"), 1, "Expected `bool`, got `int` - at `$.guards[0].passed`"),
        (("plan", "sha256"), None, "Expected `str`, got `null` - at `$.plan.sha256`"),
        (("more",), 1, "unknown field `more`"),
        (("guards",), _ABSENT, "missing required field `guards`"),
        (("files",), _ABSENT, "a field is missing"),
        (("history",), _ABSENT, "a field is missing"),
        (("orphans", "condemned", "bytes"), _ABSENT, "a field is missing"),
        (("inputs", "dump", "lastZxid"), _ABSENT, "a field is missing"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_its_field(path: tuple[Any, ...], value: object, message: str) -> None:
    document = _document(summary(_ORPHANS))
    part = document
    for step in path[:-1]:
        part = part[step]
    if value is _ABSENT:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        parse_summary(document)


@pytest.mark.parametrize("document", [None, [], "audit", 1, {}])
def test_other_documents_are_not_summaries(document: object) -> None:
    with pytest.raises(InvalidInputError, match="not the summary"):
        parse_summary(document)


def test_findings_are_orphans_of_any_status_missing_and_unattributed_ledgers() -> None:
    assert not summary().findings
    assert summary(_ORPHANS[1:]).findings
    assert replace(summary(), missing=len([missing(1)])).findings
    assert replace(summary(), unattributed=Count(1, 1)).findings
