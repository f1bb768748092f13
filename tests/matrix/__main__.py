"""``make matrix``: the same story on several versions of Pulsar, and README's table of how it went.

Each version gets clusters of its own, one version after the other. A run of some versions replaces their rows of the
table and leaves the others. Invariant: a row shows what pytest counted; it exits with 1 if any test failed.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec

from tests.cluster.choosing import PROJECT, VERSION_VARIABLE
from tests.matrix.table import Row, row_of_junit, with_rows

VERSIONS = ("3.3.6", "4.0.6", "4.0.8")
STORY = (
    *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "tests" / "integration").glob("test_deletion_*.py")),
    "tests/interop",
)
"""Deletion from end to end, and the Java client."""

README = PROJECT / "README.md"


def main(versions: Sequence[str]) -> int:
    """Run the story on each version; 0 if all of it passed everywhere."""
    rows = []
    for version in versions or VERSIONS:
        show(f"--- Pulsar {version}")
        rows.append(run_story(version))
        write_table(rows)
    show("\n".join(row.line() for row in rows))
    return 0 if all(row.passed and not row.failed for row in rows) else 1


def run_story(version: str) -> Row:
    """One version's row."""
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-matrix-") as directory:
        prepare(version, Path(directory))
        report = Path(directory) / "junit.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}", *STORY],
            cwd=PROJECT,
            env=os.environ | {VERSION_VARIABLE: version},
            check=False,
        )
        return row_of_junit(version, report.read_text())


def prepare(version: str, directory: Path) -> None:
    """Fetch what a version needs before any test's clock runs."""
    spec = ClusterSpec(directory / "members", brokers=0, bookies=1, version=version, ends_with_starter=True)
    with LocalCluster.up(spec, show):
        pass


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_table(rows: Iterable[Row]) -> None:
    README.write_text(with_rows(README.read_text(), rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
