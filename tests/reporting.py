"""Reports of benchmarks: tables that go into ``docs/benchmarks.md`` as they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """One table of figures.

    Attributes:
        title: title of the measurement.
        header: the columns' names.
        rows: the cells, already with their units.
        notes: sentences below the table: conditions of the figures.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [f"### {self.title}", "", _row(self.header), _row(["---"] * len(self.header)), *map(_row, self.rows)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
