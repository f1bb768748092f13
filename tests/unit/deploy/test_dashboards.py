"""The dashboards are as their code makes them, explain themselves, and have valid queries."""

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deploy.grafana.dashboards import main
from tests.cluster.go_tools import PROMTOOL, tool_or_skip
from tests.monitoring.shown import as_asked, dashboard_files, panels_of
from tests.unit.deploy.reported import reported

_METRIC = re.compile(r"\b((?:pulsar|process)_\w+)({[^}]*})?")
_OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds."""
_NOT_SHOWN = {
    "pulsar_delayed_message_cancellations_seconds_sum",
    "pulsar_ledger_deletion_batch_seconds_count",
    "pulsar_ledger_deletion_batch_seconds_sum",
    "pulsar_sidecar_delayed_message_index_bucket_op_latency_ms",
}
"""Parts of histograms whose other parts are shown."""
FILES = [pytest.param(file, id=file.stem) for file in dashboard_files()]


def test_the_files_are_what_the_code_makes() -> None:
    assert main(["--check"]) == 0
    assert {file.stem for file in dashboard_files()} == {
        "overview",
        "deletion",
        "delayed-messages",
        "watched-topics",
        "audits",
    }


@pytest.mark.parametrize("file", FILES)
def test_every_panel_explains_itself_and_takes_any_data_source(file: Path) -> None:
    document = json.loads(file.read_text())
    panels: list[dict[str, Any]] = [panel for panel in document["panels"] if panel["type"] != "row"]
    assert document["description"]
    for panel in panels:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"], panel["title"]
        assert {one["datasource"]["uid"] for one in (panel, *panel["targets"])} == {"${datasource}"}
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles), "a panel is found by its title"
    numbers = [panel["id"] for panel in document["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))


def queries() -> set[str]:
    return {expression for file in dashboard_files() for panel in panels_of(file) for _, expression in panel.queries}


@pytest.mark.parametrize("file", FILES)
def test_every_query_is_about_what_sidecars_and_audits_report(file: Path) -> None:
    for panel in panels_of(file):
        for legend, expression in panel.queries:
            found = _METRIC.findall(expression)
            assert found, panel.title
            known = {label for metric, _ in found for label in reported()[metric]} | _OF_PROMETHEUS
            named = {*re.findall(r"{{(\w+)}}", legend), *re.findall(r"(\w+)[!=]~?\"", expression)}
            for labels in re.findall(r"\b(?:by|on) \(([^)]+)\)", expression):
                named |= set(labels.split(", "))
            assert named <= known, panel.title


def test_everything_that_sidecars_and_audits_report_is_shown() -> None:
    shown = {metric for expression in queries() for metric, _ in _METRIC.findall(expression)}
    missing = {name for name in reported() if name not in shown and not name.startswith(("python_", "process_"))}
    assert missing == _NOT_SHOWN


@pytest.mark.parametrize("file", FILES)
def test_panels_fill_rows_without_overlap(file: Path) -> None:
    taken = [
        (column, row)
        for x, y, width, height in (panel.place for panel in panels_of(file))
        for column, row in itertools.product(range(x, x + width), range(y, y + height))
    ]
    rows = max(row for _, row in taken) + 1
    assert sorted(taken) == sorted(itertools.product(range(24), range(rows)))


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:{number}", "expr": as_asked(each, 3_600)} for number, each in enumerate(sorted(queries()))
    ]
    file = tmp_path / "queries.yml"
    YAML().dump({"groups": [{"name": "queries", "rules": rules}]}, file)
    checked = subprocess.run(
        [tool_or_skip(PROMTOOL), "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
