"""Tests and programs that run on demand, of a browser for instance, import what exists: nothing else collects them."""

from importlib import import_module

import pytest

from tests.cluster.choosing import PROJECT

ON_DEMAND = (
    "admin_clients",
    "alerts",
    "benchmarks",
    "browser",
    "containers",
    "kubernetes",
    "matrix",
    "monitoring",
    "soak",
)
OURS = ("tests", "pulsar_sidecar", "pyspark_jobs", "deploy")


@pytest.mark.parametrize("folder", ON_DEMAND)
def test_what_runs_on_demand_can_be_imported(folder: str) -> None:
    paths = sorted((PROJECT / "tests" / folder).rglob("[!_]*.py"))
    assert paths
    for path in paths:
        try:
            import_module(".".join(path.relative_to(PROJECT).with_suffix("").parts))
        except ModuleNotFoundError as error:  # of a tool that `make check` does not install
            if (error.name or "").partition(".")[0] in OURS:
                raise
