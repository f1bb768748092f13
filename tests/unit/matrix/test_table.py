"""The tables of versions count what pytest counted, and a run of one version leaves the rows of the others."""

from pathlib import Path

import pytest

from tests.matrix.__main__ import TABLE as PULSAR
from tests.matrix.table import END, Row, Table, row_of_junit

TABLE = Table(Path("unread.md"), "make matrix-spark", "PySpark")
OTHER = PULSAR.with_rows(f"{PULSAR.start}\n{END}", [Row("4.0.8", 1, 0, 0, 5)])
EMPTY = f"before\n\n{OTHER}\n\n{TABLE.start}\n{END}\n\nafter\n"


def suite(tests: int, failures: int, errors: int, skipped: int, time: float) -> str:
    counts = f'tests="{tests}" failures="{failures}" errors="{errors}" skipped="{skipped}" time="{time}"'
    return f"<testsuites><testsuite {counts}></testsuite></testsuites>"


def test_rows_are_ordered_by_version_and_replaced_by_newer_ones() -> None:
    first = TABLE.with_rows(EMPTY, [Row("4.0.10", 1, 2, 3, 4), Row("4.0.8", 5, 0, 0, 60)])
    second = TABLE.with_rows(first, [Row("4.0.8", 6, 0, 1, 70)])
    assert TABLE.rows_of(second) == [Row("4.0.8", 6, 0, 1, 70), Row("4.0.10", 1, 2, 3, 4)]
    assert (second.startswith(f"before\n\n{OTHER}\n\n"), second.endswith("\n\nafter\n")) == (True, True)


def test_one_version_has_a_row_per_variant() -> None:
    rows = [Row("3.12.1, newest", 3, 0, 0, 4), Row("3.12.1, locked", 2, 0, 0, 4), Row("3.11.7, newest", 1, 0, 0, 4)]
    assert TABLE.rows_of(TABLE.with_rows(EMPTY, rows)) == [rows[2], rows[1], rows[0]]


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no '<!-- make matrix-spark writes"):
        TABLE.with_rows(OTHER, [])


def test_a_failed_fixture_counts_as_a_failure() -> None:
    assert row_of_junit("4.0.8", suite(10, 1, 2, 3, 12.6)) == Row("4.0.8", 4, 3, 3, 13)


def test_several_runs_on_one_version_are_added_up() -> None:
    assert row_of_junit("3.12.1", suite(10, 1, 2, 3, 12.6), suite(5, 0, 0, 1, 1.6)) == Row("3.12.1", 8, 3, 4, 14)


@pytest.mark.parametrize("reports", [(), ("<testsuites></testsuites>",), (suite(1, 0, 0, 0, 1), "<testsuites/>")])
def test_a_run_without_tests_is_refused(reports: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no tests"):
        row_of_junit("4.0.8", *reports)
