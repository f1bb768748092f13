"""The page about leaked ledgers shows what was counted, and nothing else."""

import json
from dataclasses import asdict
from pathlib import Path

from tests.benchmarks.leaks_page import Mode, Operation, Row, rates, write


def row(mode: Mode, operation: Operation, kills: int, leaked: int, seed: int = 1) -> Row:
    return Row("4.0.8", mode, operation, kills, 40, leaked, 0, {"data": leaked}, 0, 0, seed, 1.0)


def test_runs_add_up_and_cells_without_one_say_so() -> None:
    rows = [row(Mode.NONE, Operation.TRIM, 2, 3), row(Mode.NONE, Operation.TRIM, 2, 1, seed=2)]
    found = {line[1]: line[2:] for line in rates(rows).rows}
    assert found[Operation.TRIM][:2] == ("not run", "**50** (4 of 80, 4 kills)")
    assert found[Operation.TRIM][2:4] == ("-", "-")
    assert set(found[Operation.TOPIC_DELETION]) == {"not run"}


def test_a_run_of_the_same_seed_replaces_its_rows(tmp_path: Path) -> None:
    results = tmp_path / "counts.json"
    write([row(Mode.WATCH, Operation.TRIM, 2, 3), row(Mode.WATCH, Operation.TRIM, 0, 0)], results, None)
    write([row(Mode.WATCH, Operation.TRIM, 2, 1)], results, None)
    assert [Row(**each).leaked for each in json.loads(results.read_text())] == [1, 0]
    assert asdict(row(Mode.WATCH, Operation.TRIM, 0, 0)) in json.loads(results.read_text())
