"""The chart's objects as a Kubernetes judges them that would run them; it keeps none of them."""

import json
import subprocess

import pytest

from tests.unit.deploy.charts import rendered

_SECONDS = 120
VALUES = ("minimal", "brokers-elsewhere", "spark", "bare")
"""The others make monitors and rules too, which only a cluster with the Prometheus Operator knows."""


@pytest.mark.kubernetes
@pytest.mark.parametrize("name", VALUES)
def test_the_api_server_would_take_them(name: str) -> None:
    objects = {"apiVersion": "v1", "kind": "List", "items": rendered(name)}
    applied = subprocess.run(
        ["kubectl", "apply", "--dry-run=server", "--filename", "-", "--namespace", "default"],
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert applied.returncode == 0, applied.stderr
    assert len(applied.stdout.splitlines()) == len(objects["items"])
