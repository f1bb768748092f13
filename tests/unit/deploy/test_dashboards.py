"""The dashboards are as their code makes them, explain themselves, and ask what Prometheus understands."""

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deploy.grafana.dashboards import main
from tests.cluster.go_tools import PROMTOOL, tool_or_skip
from tests.monitoring.shown import as_asked, dashboard_files, panels_of

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


@pytest.mark.parametrize("file", FILES)
def test_no_two_panels_overlap_and_every_line_is_full(file: Path) -> None:
    taken = [
        (column, row)
        for x, y, width, height in (panel.place for panel in panels_of(file))
        for column, row in itertools.product(range(x, x + width), range(y, y + height))
    ]
    rows = max(row for _, row in taken) + 1
    assert sorted(taken) == sorted(itertools.product(range(24), range(rows)))


def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    asked = {expression for file in dashboard_files() for panel in panels_of(file) for _, expression in panel.queries}
    rules = [{"record": f"query:{number}", "expr": as_asked(each, 3_600)} for number, each in enumerate(sorted(asked))]
    file = tmp_path / "queries.yml"
    YAML().dump({"groups": [{"name": "queries", "rules": rules}]}, file)
    checked = subprocess.run(
        [tool_or_skip(PROMTOOL), "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
