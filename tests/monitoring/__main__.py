"""``python -m tests.monitoring DIRECTORY [--pictures DIRECTORY]``: the acts, every panel's query, and pictures.

The directory keeps Prometheus' data. Where it has them already, the acts are not run again.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import until
from tests.monitoring.acts import prepared
from tests.monitoring.servers import SCRAPE_SECONDS, Prometheus, prometheus, serving_newest_audit
from tests.monitoring.shown import ShownPanel, as_asked, ask, choices_of, dashboard_files, panels_of

WITHOUT_DATA: Final[Mapping[tuple[str, str], str]] = {
    ("audits", "Inputs that could not be read"): "these acts damage nothing, so audits read everything",
    (
        "audits",
        "Nodes that point to nothing",
    ): "these acts leave none",
}
"""Panels that these acts give no data, by dashboard and title, and why."""

_RULES: Final = PROJECT / "deploy" / "prometheus"


def main() -> int:
    """Return 1 if a panel has no data without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.monitoring")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--pictures", type=Path, help="draw each dashboard into this directory")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    times = directory / "times.json"
    if not times.exists():
        _record(directory, times)
    start, end = json.loads(times.read_text())
    with prometheus(directory, {}) as kept:
        _report(f"alerts that fired: {_fired(kept, start, end)}")
        failed = [_show(file, kept, start, end, arguments.pictures) for file in dashboard_files()]
    return 1 if any(failed) else 0


def _record(directory: Path, times: Path) -> None:
    with (
        prepared(directory, _report) as acts,
        serving_newest_audit(acts.environment.audits) as audits,
        prometheus(
            directory,
            {"pulsar-sidecar": [one.url.removeprefix("http://") for one in acts.sidecars], "audits": [audits]},
            sorted(_RULES.glob("*.rules.yml")),
        ) as scraping,
    ):
        until(lambda: scraping.healthy_targets() == 3, "everything is scraped", 60)
        start = time.time()  # noqa: TID251 - Prometheus' clock
        acts.run()
        end = time.time()  # noqa: TID251
        times.write_text(json.dumps([start, end]))


def _fired(asked: Prometheus, start: float, end: float) -> str:
    firing = asked.over('ALERTS{alertstate="firing"}', start, end, SCRAPE_SECONDS)
    return ", ".join(sorted({one.labels["alertname"] for one in firing}))


def _show(file: Path, asked: Prometheus, start: float, end: float, pictures: Path | None) -> list[ShownPanel]:
    """Run a dashboard's queries; return the panels that have no data without a reason."""
    panels = panels_of(file)
    for label, selector in choices_of(file).items():
        assert asked.values_of(label, as_asked(selector, end - start), start, end), (
            f"{file.stem}: {label} has no values"
        )
    for panel in panels:
        ask(panel, asked, start, end)
    empty = [panel for panel in panels if panel.kind != "row" and not panel.lines]
    failed = [panel for panel in empty if (file.stem, panel.title) not in WITHOUT_DATA]
    full = sum(panel.kind != "row" for panel in panels) - len(empty)
    _report(f"{file.stem}: {full} panels with data, {len(empty)} without")
    for panel in empty:
        _report(f"  without: {panel.title} ({WITHOUT_DATA.get((file.stem, panel.title), 'NO REASON IS KNOWN')})")
    if pictures is not None:
        from tests.monitoring.pictures import draw  # matplotlib is not needed for queries

        draw(panels, pictures / f"{file.stem}.png", (start, end))
    return failed


def _report(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
