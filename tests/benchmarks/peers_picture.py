"""The picture of ``docs/benchmarks.md``: each job of its first table, in times as fast as the peer.

``python -m tests.benchmarks.peers_picture`` draws it again after a change of the table.
"""

import re
from pathlib import Path

PAGE = Path("docs/benchmarks.md")
_JOB = re.compile(r"^\| \[(?P<job>[^]]+)\].*\| (?P<times>[\d.]+) \| `[^`]+` \|$", re.MULTILINE)


def jobs(page: str) -> dict[str, str]:
    """Return the last column of the page's first table, by job."""
    return {found["job"]: found["times"] for found in _JOB.finditer(page)}


def draw(page: Path, picture: Path) -> None:
    """Write the table's bars as SVG, on a logarithmic scale."""
    from matplotlib import pyplot  # of `make .venv/.tools`; the test needs the table only

    found = jobs(page.read_text())
    times = [float(each) for each in found.values()]
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "peers"})
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(found) + 1), layout="constrained")
    bars = axes.barh(list(found), [each - 1 for each in times], left=1, height=0.6)
    for bar, each in zip(bars, times, strict=True):
        bar.set_color("#2a7f62" if each >= 1 else "#b4552d")
    for row, (text, each) in enumerate(zip(found.values(), times, strict=True)):
        place = {"ha": "left", "xytext": (3, 0)} if each >= 1 else {"ha": "right", "xytext": (-3, 0)}
        axes.annotate(text, (each, row), va="center", textcoords="offset points", **place)
    axes.set_xscale("log")
    axes.set_xlim(0.05, 300)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("times as fast as the peer")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    draw(PAGE, PAGE.with_suffix(".svg"))
