"""The table of versions in README: one line of Markdown for each version, between two marks."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from xml.etree import ElementTree

START, END = "<!-- make matrix writes this table -->", "<!-- until here -->"
_HEAD = ("| Pulsar | passed | failed | skipped | seconds |", "|---|---|---|---|---|")
_LINE = re.compile(r"\| (\S+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|")


@dataclass(frozen=True, slots=True)
class Row:
    """How the tests went on one version; a test whose fixture failed counts as failed."""

    version: str
    passed: int
    failed: int
    skipped: int
    seconds: int

    def line(self) -> str:
        return f"| {self.version} | {self.passed} | {self.failed} | {self.skipped} | {self.seconds} |"


def row_of_junit(version: str, report: str) -> Row:
    """Read pytest's report.

    Raises:
        ValueError: it has no suite of tests.
    """
    suite = ElementTree.fromstring(report).find("testsuite")
    if suite is None:
        raise ValueError("pytest has reported no tests")
    failed, skipped = int(suite.get("failures", 0)) + int(suite.get("errors", 0)), int(suite.get("skipped", 0))
    passed = int(suite.get("tests", 0)) - failed - skipped
    return Row(version, passed, failed, skipped, round(float(suite.get("time", 0))))


def rows_of(text: str) -> list[Row]:
    """The rows that a document has."""
    found = (_LINE.fullmatch(line) for line in _between_marks(text).splitlines())
    return [Row(row[1], *(int(row[index]) for index in range(2, 6))) for row in found if row]


def with_rows(text: str, rows: Iterable[Row]) -> str:
    """The document with these rows, in the order of versions, and those of other versions that it had."""
    kept = {row.version: row for row in (*rows_of(text), *rows)}
    ordered = sorted(kept.values(), key=lambda row: [int(part) for part in re.findall(r"\d+", row.version)])
    table = "\n".join([START, *_HEAD, *(row.line() for row in ordered), END])
    return text.replace(START + _between_marks(text) + END, table)


def _between_marks(text: str) -> str:
    _, start, rest = text.partition(START)
    inside, end, _ = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the document has no {START!r} that ends with {END!r}")
    return inside
