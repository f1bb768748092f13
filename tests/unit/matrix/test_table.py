"""The table of versions counts what pytest counted, and a run of one version leaves the rows of the others."""

import pytest

from tests.matrix.table import END, START, Row, row_of_junit, rows_of, with_rows

EMPTY = f"before\n\n{START}\n{END}\n\nafter\n"


def test_rows_are_ordered_by_version_and_replaced_by_newer_ones() -> None:
    first = with_rows(EMPTY, [Row("4.0.10", 1, 2, 3, 4), Row("4.0.8", 5, 0, 0, 60)])
    second = with_rows(first, [Row("4.0.8", 6, 0, 1, 70)])
    assert rows_of(second) == [Row("4.0.8", 6, 0, 1, 70), Row("4.0.10", 1, 2, 3, 4)]
    assert (second.startswith("before\n\n"), second.endswith("\n\nafter\n")) == (True, True)


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no '<!-- make"):
        with_rows("nothing", [])


def test_a_failed_fixture_counts_as_a_failure() -> None:
    suite = '<testsuite tests="10" failures="1" errors="2" skipped="3" time="12.6"></testsuite>'
    assert row_of_junit("4.0.8", f"<testsuites>{suite}</testsuites>") == Row("4.0.8", 4, 3, 3, 13)
    with pytest.raises(ValueError, match="no tests"):
        row_of_junit("4.0.8", "<testsuites></testsuites>")
