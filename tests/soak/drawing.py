"""The picture and the table of a soak, for ``docs/soak.md``."""

from collections.abc import Sequence
from pathlib import Path

from tests.reporting import Table
from tests.soak.judging import Course
from tests.soak.samples import Sample

_TITLES = {
    "anonymous_mb": "memory of its own, MiB",
    "resident_mb": "resident memory, MiB",
    "descriptors": "open descriptors",
    "threads": "threads",
    "nodes": "ZooKeeper nodes",
    "watches": "ZooKeeper watches",
    "topics": "topics",
    "waiting": "records waiting",
}


def table(courses: Sequence[Course], title: str) -> Table:
    """Return a table with a row for each figure."""
    header = ("", "", *(f"{part}/4 of the time" for part in (1, 2, 3, 4)), "highest", "an hour, second half", "flat")
    rows = [
        (
            course.of,
            _TITLES[course.what],
            *(f"{each:,.0f}" for each in course.quarters),
            f"{course.highest:,.0f}",
            f"{course.per_hour:+,.1f}",
            "yes" if course.is_flat else "**no**",
        )
        for course in courses
    ]
    return Table(title, header, rows)


def draw(samples: Sequence[Sample], picture: Path) -> None:
    """Draw each figure over the hours, the sidecars in one panel."""
    import matplotlib as mpl  # `make soak` installs it; judging does without

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "soak", "svg.fonttype": "none"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 2, figsize=(11, 11), sharex=True, layout="constrained")
    names = sorted({name for sample in samples for name in sample.sidecars})
    for axis, (what, title) in zip(axes.flat, _TITLES.items(), strict=True):
        if what in ("anonymous_mb", "resident_mb", "descriptors", "threads"):
            for name in names:
                found = [
                    (each.seconds / 60, getattr(each.sidecars[name], what)) for each in samples if name in each.sidecars
                ]
                axis.plot(*zip(*found, strict=True), label=name, linewidth=1)
            axis.legend(fontsize="small")
        else:
            found = [(each.seconds / 60, each.cluster[what]) for each in samples if each.cluster]
            axis.plot(*zip(*found, strict=True), linewidth=1, color="black")
        axis.set_title(title, fontsize="medium")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("minutes")
    figure.savefig(picture, metadata={"Date": None})
