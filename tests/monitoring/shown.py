"""A dashboard's queries, read from its JSON as Grafana does, and their responses."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.choosing import PROJECT
from tests.monitoring.servers import SCRAPE_SECONDS, Prometheus, Series

DASHBOARDS = PROJECT / "deploy" / "grafana" / "dashboards"
_POINTS = 240
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
_LABEL = re.compile(r"{{\s*(\w+)\s*}}")


@dataclass(frozen=True, slots=True)
class Line:
    """A series with its legend."""

    legend: str
    series: Series


@dataclass(slots=True)
class ShownPanel:
    """A panel; ``place`` is x, y, width and height in Grafana's grid, ``empty`` the text without data."""

    title: str
    kind: str
    place: tuple[int, int, int, int]
    unit: str = "short"
    empty: str = ""
    stacked: bool = False
    queries: Sequence[tuple[str, str]] = ()
    names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limits: Sequence[tuple[float | None, str]] = ()
    lines: list[Line] = field(default_factory=list)


def dashboard_files() -> list[Path]:
    return sorted(DASHBOARDS.glob("*.json"))


def panels_of(file: Path) -> list[ShownPanel]:
    """Return the dashboard's panels, rows' headings included."""
    return [_panel(each) for each in json.loads(file.read_text())["panels"]]


def choices_of(file: Path) -> dict[str, str]:
    """Return the dashboard's variables, each with the series whose label values it offers."""
    variables = json.loads(file.read_text())["templating"]["list"]
    asked = [_LABEL_VALUES.fullmatch(each["query"]) for each in variables if each["type"] == "query"]
    return {found[2]: found[1] for found in asked if found}


def as_asked(expression: str, seconds: float, variables: Mapping[str, str] | None = None) -> str:
    """Replace Grafana's variables; every cluster and topic is chosen unless ``variables`` has others."""
    values = {
        "__rate_interval": f"{8 * SCRAPE_SECONDS}s",
        "__range": f"{round(seconds)}s",
        "cluster": ".*",
        "topic": ".*",
        **(variables or {}),
    }
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)


def ask(panel: ShownPanel, prometheus: Prometheus, start: float, end: float) -> None:
    """Run a panel's queries; the lines it then shows are in ``panel.lines``."""
    step = max(1, round((end - start) / _POINTS))
    for legend, expression in panel.queries:
        for series in prometheus.over(as_asked(expression, end - start), start, end, step):
            panel.lines.append(Line(_legend(legend, series.labels), series))


def _legend(template: str, labels: Mapping[str, str]) -> str:
    return _LABEL.sub(lambda found: labels.get(found[1], ""), template)


def _panel(document: Mapping[str, Any]) -> ShownPanel:
    grid = document["gridPos"]
    place = grid["x"], grid["y"], grid["w"], grid["h"]
    if document["type"] == "row":
        return ShownPanel(document["title"], "row", place)
    defaults = document["fieldConfig"]["defaults"]
    return ShownPanel(
        document["title"],
        document["type"],
        place,
        unit=defaults.get("unit", "short"),
        empty=defaults["noValue"],
        stacked=defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal",
        queries=[(target["legendFormat"], target["expr"]) for target in document["targets"]],
        names={value: text for mapping in defaults.get("mappings", ()) for value, text in mapping["options"].items()},
        limits=list(_limits(defaults.get("thresholds", {}).get("steps", ()))),
    )


def _limits(steps: Sequence[Mapping[str, Any]]) -> Iterator[tuple[float | None, str]]:
    for step in steps:
        yield step["value"], step["color"]
