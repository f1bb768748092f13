"""End of ``make test``: counts over all parts, failures, and the slowest parts."""

import dataclasses
from pathlib import Path

import pytest

from tests.summary.__main__ import main
from tests.summary.part import Failure, Part, load_part

PASSED = Part(12, (), {}, (), {"tests/a.py::test_a": 61.0}, 75.5)
FAILED = Part(
    3,
    (
        Failure(
            "tests/b.py::test_b", "assert 1 == 2\n where 1 = one()", ".venv/bin/python -m pytest 'tests/b.py::test_b'"
        ),
    ),
    {"needs Docker": 2},
    ("tests/b.py::test_c",),
    {"tests/b.py::test_b": 99.0, "tests/b.py::test_c": 5.0},
    120.0,
)


def saved(directory: Path, **parts: Part) -> list[str]:
    for name, part in parts.items():
        part.save(directory / f"{name}.json")
    return [str(directory / f"{name}.json") for name in parts]


def test_a_part_is_read_as_it_was_saved(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, failed=FAILED)
    assert load_part(Path(path)) == FAILED


def test_the_last_line_counts_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("3725", *saved(tmp_path, unit=PASSED, integration=FAILED)) == 1
    *before, last = capsys.readouterr().out.splitlines()
    assert last == "15 passed, 1 failed, 2 skipped in 62 min 5 s"
    assert before[-4:] == [
        "",
        "skipped 2: 2 needs Docker",
        "second try, a wait had run out: tests/b.py::test_c",
        "FAILED after 99 s: .venv/bin/python -m pytest 'tests/b.py::test_b'",
    ]
    assert before[-7:-4] == ["FAILED tests/b.py::test_b", "    assert 1 == 2", "     where 1 = one()"]
    assert "  integration  3 passed, 1 failed, 2 skipped in 2 min 0 s" in before
    assert "  unit         12 passed, 0 failed, 0 skipped in 1 min 15 s" in before
    slowest = before[before.index("the 3 slowest tests:") + 1 :]
    assert slowest[:2] == ["     99 s  tests/b.py::test_b", "     61 s  tests/a.py::test_a"]


def test_the_verdict_is_ten_lines_however_many_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = dataclasses.replace(FAILED, failures=FAILED.failures * 20)
    assert main("80", *saved(tmp_path, unit=many), str(tmp_path / "spark.json")) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) - 1 - max(at for at, line in enumerate(lines) if not line) <= 10
    assert lines[-2:] == ["FAILED 15 more, named above", "3 passed, 20 failed, 2 skipped in 1 min 20 s"]


def test_all_parts_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = dataclasses.replace(PASSED, branches=(1980, 2000))
    assert main("80", *saved(tmp_path, unit=measured)) == 0
    written = capsys.readouterr().out
    assert written.endswith("\n12 passed, 0 failed, 0 skipped in 1 min 20 s\n")
    assert "\nbranch coverage of what decides: 99.0% of 2,000 branches\n" in written


def test_missing_part_result_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main("80", *saved(tmp_path, unit=PASSED), str(tmp_path / "spark.json")) == 1
    assert "NO RESULT, it did not run or ended early: spark\n" in capsys.readouterr().out


_TESTS = """
import pytest

@pytest.fixture
def broken_end():
    yield
    raise OSError("not closed")

def test_passes(): pass
def test_fails(): assert [1] == [2], "they differ"
def test_fails_at_its_end(broken_end): pass
def test_is_skipped(): pytest.skip("no time")
"""


def test_pytest_leaves_what_its_tests_did(tmp_path: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(_TESTS)
    pytester.runpytest("-p", "tests.summary.plugin", "--part", str(tmp_path / "part.json"))
    part = load_part(tmp_path / "part.json")
    assert (part.passed, part.skipped, part.second_tries) == (1, {"no time": 1}, ())
    names = [failure.test.rpartition("::")[2] for failure in part.failures]
    assert names == ["test_fails", "test_fails_at_its_end"]
    assert part.failures[0].reason.startswith("AssertionError: they differ")
    assert part.failures[0].again == f".venv/bin/python -m pytest '{part.failures[0].test}'"
    assert part.failures[1].reason == "OSError: not closed"
    assert len(part.seconds) == 4


def test_truncated_part_result_fails(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, unit=PASSED)
    Path(path).write_bytes(Path(path).read_bytes()[:40])
    assert main("80", path) == 1
