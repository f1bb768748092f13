"""The tests on one version after the other, each with its row in a document's table.

A run of some versions replaces their rows and leaves the others. Invariant: a row shows what pytest counted.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster.choosing import PROJECT
from tests.matrix.table import Row, Table, row_of_junit


def fill(table: Table, runs: Mapping[str, Callable[[], Sequence[str]]]) -> int:
    """Run each version's tests, and return 0 if all passed everywhere, otherwise 1."""
    rows: list[Row] = []
    for version, run in runs.items():
        show(f"--- {table.subject} {version}")
        rows.append(row_of_junit(version, *run()))
        table.write(rows)
    show("\n".join(row.line() for row in rows))
    return 0 if all(row.passed and not row.failed for row in rows) else 1


def reports(python: Path, *runs: Sequence[str], variables: Mapping[str, str] | None = None) -> list[str]:
    """Return pytest's reports of some runs, each in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-matrix-") as directory:
        files = [Path(directory, f"{number}.xml") for number in range(len(runs))]
        for file, arguments in zip(files, runs, strict=True):
            subprocess.run(
                [str(python), "-m", "pytest", "-q", "--tb=short", f"--junitxml={file}", *arguments],
                cwd=PROJECT,
                env=os.environ | dict(variables or {}),
                check=False,
            )
        return [file.read_text() for file in files]


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
