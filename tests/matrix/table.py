"""Tables of versions in documents: one line of Markdown for each version, between two marks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

END = "<!-- until here -->"
_LINE = re.compile(r"\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")


@dataclass(frozen=True, slots=True)
class Row:
    """Results on one version; a test whose fixture failed counts as failed."""

    version: str
    """Such as ``4.0.8``, or ``3.12.1, locked`` where more than the version makes the difference."""
    passed: int
    failed: int
    skipped: int
    seconds: int

    def line(self) -> str:
        return f"| {self.version} | {self.passed} | {self.failed} | {self.skipped} | {self.seconds} |"


def row_of_junit(version: str, *reports: str) -> Row:
    """Add up pytest's reports.

    Raises:
        ValueError: one of them has no suite of tests.
    """
    suites = [ElementTree.fromstring(report).find("testsuite") for report in reports]
    found = [suite for suite in suites if suite is not None]
    if not found or len(found) < len(suites):
        raise ValueError("pytest has reported no tests")

    def total(name: str) -> int:
        return sum(int(suite.get(name, 0)) for suite in found)

    failed, skipped = total("failures") + total("errors"), total("skipped")
    seconds = sum(float(suite.get("time", 0)) for suite in found)
    return Row(version, total("tests") - failed - skipped, failed, skipped, round(seconds))


@dataclass(frozen=True, slots=True)
class Table:
    """A command's table in a document."""

    document: Path
    command: str
    """The document's mark names the command."""
    subject: str
    """The product whose versions the rows name."""

    @property
    def start(self) -> str:
        return f"<!-- {self.command} writes this table -->"

    def write(self, rows: Iterable[Row]) -> None:
        self.document.write_text(self.with_rows(self.document.read_text(), rows))

    def rows_of(self, text: str) -> list[Row]:
        """Return the rows that a document has."""
        found = (_LINE.fullmatch(line) for line in self._between_marks(text).splitlines())
        return [Row(row[1], *(int(row[index]) for index in range(2, 6))) for row in found if row]

    def with_rows(self, text: str, rows: Iterable[Row]) -> str:
        """Return the document with these rows, in the order of versions, and those of other versions that it had."""
        kept = {row.version: row for row in (*self.rows_of(text), *rows)}
        ordered = sorted(
            kept.values(), key=lambda row: ([int(part) for part in re.findall(r"\d+", row.version)], row.version)
        )
        head = (f"| {self.subject} | passed | failed | skipped | seconds |", "|---|---|---|---|---|")
        table = "\n".join([self.start, *head, *(row.line() for row in ordered), END])
        return text.replace(self.start + self._between_marks(text) + END, table)

    def _between_marks(self, text: str) -> str:
        _, start, rest = text.partition(self.start)
        inside, end, _ = rest.partition(END)
        if not start or not end:
            raise ValueError(f"the document has no {self.start!r} that ends with {END!r}")
        return inside
