"""``make matrix``: the same story on several versions of Pulsar, and README's table of how it went.

Each version gets clusters of its own, one version after the other.
"""

import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.pulsar_versions import TESTED_VERSIONS

from tests.cluster.choosing import PROJECT, VERSION_VARIABLE
from tests.matrix.running import fill, reports, show
from tests.matrix.table import Table

STORY = (
    *sorted(str(path.relative_to(PROJECT)) for path in (PROJECT / "tests" / "integration").glob("test_deletion_*.py")),
    "tests/interop",
)
"""Deletion from end to end, and the Java client."""

TABLE = Table(PROJECT / "README.md", "make matrix", "Pulsar")


def main(versions: Sequence[str]) -> int:
    """Run the story on each version; 0 if all of it passed everywhere."""
    return fill(TABLE, {version: partial(run_story, version) for version in versions or TESTED_VERSIONS})


def run_story(version: str) -> list[str]:
    """Return the reports of a version."""
    prepare(version)
    return reports(Path(sys.executable), STORY, variables={VERSION_VARIABLE: version})


def prepare(version: str) -> None:
    """Fetch what a version needs before any test's clock runs."""
    with tempfile.TemporaryDirectory(prefix="pulsar-sidecar-matrix-") as directory:
        spec = ClusterSpec(Path(directory, "members"), brokers=0, bookies=1, version=version, ends_with_starter=True)
        with LocalCluster.up(spec, show):
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
