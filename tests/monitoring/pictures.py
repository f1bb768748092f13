"""Pictures of dashboards, drawn from their panels' responses, in Grafana's layout."""

import itertools
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from tests.monitoring.shown import Line, ShownPanel

_COLOURS: Final = {"green": "#3a8f4d", "orange": "#e08a1e", "red": "#c4312f", "blue": "#2f6fb0"}
_WIDTH, _ROW_HEIGHT, _GRID = 16.0, 0.36, 24
_MOST_IN_A_LEGEND: Final = 8
_LONG: Final = 26
_STEPS: Final = {"bytes": (1024.0, ("B", "KiB", "MiB", "GiB", "TiB")), "short": (1000.0, ("", "K", "M", "G"))}


def draw(panels: Sequence[ShownPanel], file: Path, times: tuple[float, float]) -> None:
    """Draw the panels into one picture, with time in minutes since the first of ``times``."""
    mpl.use("agg")
    mpl.rcParams.update({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    height = max(panel.place[1] + panel.place[3] for panel in panels)
    picture = plt.figure(figsize=(_WIDTH, height * _ROW_HEIGHT))
    for panel in panels:
        x, y, width, rows = panel.place
        if panel.kind == "row":
            picture.text(0.01, 1 - (y + 0.8) / height, panel.title, fontsize=11, weight="bold")
            continue
        below = 1 if panel.kind == "stat" else 2.4
        left, bottom = (x + 1.1) / _GRID, 1 - (y + rows - below) / height
        axes = picture.add_axes((left, bottom, (width - 1.5) / _GRID, (rows - 1 - below) / height))
        axes.set_title(panel.title, loc="left", fontsize=9)
        {"stat": _figure, "timeseries": _graph, "state-timeline": _states}[panel.kind](axes, panel, times[0])
        axes.set_xlim(*_along(panel, times))
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = BytesIO()
    picture.savefig(drawn, dpi=72)
    plt.close(picture)
    Image.open(drawn).convert("RGB").quantize(64).save(file, optimize=True)


def _figure(axes: Any, panel: ShownPanel, start: float) -> None:
    axes.axis("off")
    if not panel.lines:
        axes.text(0.5, 0.5, panel.empty, ha="center", va="center", wrap=True, transform=axes.transAxes, color="grey")
        return
    series = panel.lines[0].series.points
    value = series[-1][1]
    name = panel.names.get(f"{value:.0f}")
    text, colour = (name["text"], name["color"]) if name else (_formatted(value, panel.unit), _colour(panel, value))
    axes.plot([at for at, _ in series], [each for _, each in series], color=_COLOURS[colour], alpha=0.25)
    axes.fill_between([at for at, _ in series], [each for _, each in series], color=_COLOURS[colour], alpha=0.12)
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=20, transform=axes.transAxes, color=_COLOURS[colour])


def _graph(axes: Any, panel: ShownPanel, start: float) -> None:
    if not panel.lines:
        axes.text(0.5, 0.5, panel.empty, ha="center", va="center", transform=axes.transAxes, color="grey")
    elif panel.stacked:
        times = sorted({at for line in panel.lines for at, _ in line.series.points})
        values = [[dict(line.series.points).get(at, 0.0) for at in times] for line in panel.lines]
        axes.stackplot(_minutes(times, start), values, labels=[_legend(line) for line in panel.lines], alpha=0.7)
    else:
        for line in panel.lines:
            times, numbers = _with_gaps(line)
            axes.plot(_minutes(times, start), numbers, label=_legend(line), linewidth=1.3)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1e-9) * 1.05)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _formatted(value, panel.unit)))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="y", alpha=0.3)
    _legend_and_time(axes)


def _states(axes: Any, panel: ShownPanel, start: float) -> None:
    for row, line in enumerate(panel.lines):
        step = _step(line)
        for at, value in line.series.points:
            name = panel.names.get(f"{value:.0f}", {"color": "blue"})
            axes.broken_barh([((at - start) / 60, step / 60)], (row - 0.4, 0.8), color=_COLOURS[name["color"]])
    axes.set_yticks(range(len(panel.lines)), [_shortened(_legend(line)) for line in panel.lines], fontsize=7)
    axes.tick_params(axis="y", direction="in", pad=-4, length=0)
    for label in axes.get_yticklabels():
        label.set_horizontalalignment("left")
    for name in panel.names.values():
        axes.plot([], [], color=_COLOURS[name["color"]], linewidth=6, label=name["text"])
    _legend_and_time(axes)


def _legend_and_time(axes: Any) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: f"{minutes:.0f} min"))
    handles, labels = axes.get_legend_handles_labels()
    if any(label != "value" for label in labels):
        shown = [_shortened(label) for label in labels[:_MOST_IN_A_LEGEND]]
        columns = 4 if max(map(len, shown)) < _LONG else 2
        axes.legend(
            handles[:_MOST_IN_A_LEGEND],
            shown,
            loc="upper left",
            bbox_to_anchor=(0, -0.12),
            fontsize=7,
            frameon=False,
            ncols=columns,
        )


def _along(panel: ShownPanel, times: tuple[float, float]) -> tuple[float, float]:
    return times if panel.kind == "stat" else (0, (times[1] - times[0]) / 60)


def _minutes(times: Sequence[float], start: float) -> list[float]:
    return [(at - start) / 60 for at in times]


def _with_gaps(line: Line) -> tuple[list[float], list[float]]:
    """Return the line with a gap where a series has no samples."""
    times: list[float] = []
    values: list[float] = []
    step = _step(line)
    for at, value in line.series.points:
        if times and at - times[-1] > 1.5 * step:
            times.append(times[-1] + step)
            values.append(math.nan)
        times.append(at)
        values.append(value)
    return times, values


def _step(line: Line) -> float:
    times = [at for at, _ in line.series.points]
    return min((later - earlier for earlier, later in itertools.pairwise(times)), default=1.0)


def _legend(line: Line) -> str:
    return line.legend.strip(", ") or "value"


def _shortened(text: str) -> str:
    return text.replace("persistent://", "")[:60]


def _colour(panel: ShownPanel, value: float) -> str:
    reached = [colour for limit, colour in panel.limits if limit is None or value >= limit]
    return reached[-1] if reached else "green"


def _formatted(value: float, unit: str) -> str:
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in {"s", "ms"}:
        return _duration(value / (1000 if unit == "ms" else 1))
    base, names = _STEPS["bytes" if unit in {"bytes", "binBps"} else "short"]
    steps = 0
    while abs(value) >= base and steps < len(names) - 1:
        value, steps = value / base, steps + 1
    per_second = "/s" if unit in {"binBps", "suffix:/s"} else ""
    return f"{value:.3g}{' ' if names[steps] else ''}{names[steps]}{per_second}"


def _duration(seconds: float) -> str:
    for length, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")):
        if abs(seconds) >= length:
            return f"{seconds / length:.3g} {name}"
    return f"{seconds * 1000:.3g} ms"
