"""Forms from which all dashboards are built, over the builders of Grafana's own SDK.

Invariant: a panel explains itself. Its description names what is counted, and where a query may find nothing, the panel
shows why instead of "No data".
"""

import math
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as dashboard_builder
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common, dashboard

Panel = stat.Panel | statetimeline.Panel | timeseries.Panel
P = TypeVar("P", stat.Panel, statetimeline.Panel, timeseries.Panel)
Colour = str
GREEN, ORANGE, RED, BLUE = "green", "orange", "red", "blue"
TAG: Final = "pulsar-sidecar"
PER_SECOND: Final = "suffix:/s"

_SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDE: Final = 24


def figure(
    title: str,
    about: str,
    queries: str | Mapping[str, str],
    *,
    empty: str,
    unit: str = "short",
    limits: Mapping[float, Colour] | None = None,
    names: Mapping[int, tuple[str, Colour]] | None = None,
    more: str = "",
) -> stat.Panel:
    """The present value.

    ``limits`` is the colour from each value on, ``names`` what a value is called, ``more`` the uid of the dashboard to
    look at next.
    """
    panel = stat.Panel().title(title).description(about).no_value(empty).unit(unit).height(4)
    panel.color_mode(common.BigValueColorMode.VALUE).graph_mode(common.BigValueGraphMode.AREA)
    panel.reduce_options(common_builder.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.thresholds(_thresholds(limits or {})).mappings(_mappings(names or {}))
    if more:
        link = dashboard_builder.DashboardLink("More").type(dashboard.DashboardLinkType.LINK).url(f"/d/{more}")
        panel.links([link.include_vars(True).keep_time(True)])
    return _asking(panel, queries)


def lines(
    title: str,
    about: str,
    queries: str | Mapping[str, str],
    *,
    empty: str,
    unit: str = "short",
    stacked: bool = False,
) -> timeseries.Panel:
    """Values over time; ``queries`` is one query, or queries by the legend of their lines."""
    panel = timeseries.Panel().title(title).description(about).no_value(empty).unit(unit).height(8).min(0)
    panel.fill_opacity(60 if stacked else 10).show_points(common.VisibilityMode.NEVER)
    panel.legend(
        common_builder.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    if stacked:
        panel.stacking(common_builder.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    return _asking(panel, queries)


def states(
    title: str,
    about: str,
    queries: str | Mapping[str, str],
    *,
    empty: str,
    names: Mapping[int, tuple[str, Colour]],
) -> statetimeline.Panel:
    """Bands of colour over time, for what is one of a few things."""
    panel = statetimeline.Panel().title(title).description(about).no_value(empty).height(8)
    panel.mappings(_mappings(names)).show_value(common.VisibilityMode.NEVER)
    return _asking(panel, queries)


def board(
    uid: str,
    title: str,
    about: str,
    variables: Sequence[dashboard_builder.QueryVariable],
    rows: Mapping[str, Sequence[Panel]],
) -> dashboard.Dashboard:
    """A dashboard of rows by their titles; the panels of one form share a row's width."""
    made = dashboard_builder.Dashboard(title).uid(uid).description(about).tags([TAG]).editable().refresh("30s")
    made.time("now-6h", "now").timezone("browser").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
    made.link(
        dashboard_builder.DashboardLink("Pulsar sidecar")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )
    made.with_variable(dashboard_builder.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    for variable in variables:
        made.with_variable(variable)
    numbers = count(1)
    for heading, panels in rows.items():
        made.with_row(dashboard_builder.Row(heading).id(next(numbers)))
        for panel, width in _widths(panels):
            made.with_panel(panel.span(width).id(next(numbers)))
    return made.build()


def variable(name: str, label: str, metric: str, *, of: str = "") -> dashboard_builder.QueryVariable:
    """Values of a metric's label: several may be chosen, and all are by default."""
    chosen = f"{metric}{{{of}}}" if of else metric
    return (
        dashboard_builder.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(f"label_values({chosen}, {name})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard.VariableOption(text="All", value="$__all"))
    )


def _widths(panels: Sequence[Panel]) -> Sequence[tuple[Panel, int]]:
    """At most six figures or two graphs side by side; an incomplete last row is widened."""
    widths: list[tuple[Panel, int]] = []
    for form in (stat.Panel, (statetimeline.Panel, timeseries.Panel)):
        of_form = [panel for panel in panels if isinstance(panel, form)]
        needed = math.ceil(len(of_form) / (6 if form is stat.Panel else 2))
        most = math.ceil(len(of_form) / max(1, needed))
        for start in range(0, len(of_form), max(1, most)):
            line = of_form[start : start + most]
            shares = [_WIDE // len(line)] * len(line)
            shares[-1] += _WIDE - sum(shares)
            widths += zip(line, shares, strict=True)
    return widths


def _asking(panel: P, queries: str | Mapping[str, str]) -> P:
    panel.datasource(_SOURCE)
    asked = {"": queries} if isinstance(queries, str) else queries
    for letter, (legend, expression) in zip("ABCDEF", asked.items(), strict=False):
        panel.with_target(
            prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter).range().datasource(_SOURCE)
        )
    return panel


def _thresholds(limits: Mapping[float, Colour]) -> dashboard_builder.ThresholdsConfig:
    steps = [
        dashboard.Threshold(None, GREEN),
        *(dashboard.Threshold(value, colour) for value, colour in limits.items()),
    ]
    return dashboard_builder.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps)


def _mappings(names: Mapping[int, tuple[str, Colour]]) -> list[dashboard.ValueMapping]:
    if not names:
        return []
    options = {
        str(value): dashboard.ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(names.items())
    }
    return [dashboard.ValueMap(options=options)]
