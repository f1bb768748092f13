"""The nightly audit as the chart makes it: a CronJob's pod, and on Spark a driver's pod with executors beside it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.faults.load import pause
from tests.faults.tally import Line
from tests.kubernetes.images import Images
from tests.kubernetes.release import Release

pytestmark = pytest.mark.kubernetes

CRON_JOB = "pulsar-sidecar-audit"
EXECUTORS = 2
_OPTIONS = (
    "--bookkeeper-exclusive-to-cluster --min-age-hours 0.001 --look-window-hours 0.001 --allow-young "
    "--max-share 1 --max-shrink 1"
)
"""Days and hours of the defaults, cut down to seconds; a test's leaks are a large share of its cluster."""
_BETWEEN_NIGHTS_SECONDS = 5.0


@pytest.fixture
def audited(release: Release) -> Iterator[Release]:
    """Return a release whose audits end with the test; their volume stays, as the chart promises."""
    yield release
    release.upgrade()


def test_what_brokers_left_is_found_in_two_nights_and_deleted_by_the_sidecars(
    scene: Scene, audited: Release, images: Images, tally: Line
) -> None:
    images.provide("audit")
    audited.upgrade({"audit": {"enabled": True, "options": _OPTIONS}})
    left = scene.orphans(scene.topic("left"), 4)
    first_night(scene, audited, "embedded")
    audited.run_job_of(CRON_JOB, "embedded-second")
    tally.fault("nightly audit, embedded", 2)
    newest = "newest=$(ls -d /audits/audits/* | tail -1)"
    (shown,) = answers(run_beside(audited, "embedded-plan", f"{newest}; {apply_on_one_line('$newest')}"))
    apply = f"{newest}; pulsar-sidecar audit apply $newest --execute --plan {shown['plan']} --output-format json"
    run_beside(audited, "embedded-apply", apply)
    scene.oracles.add_accepted(left.all)
    until(lambda: not scene.workload.existing(left.all), "the sidecars have deleted what the audit found")


def test_spark_makes_the_plan_that_the_embedded_engine_makes(
    scene: Scene, audited: Release, images: Images, tally: Line
) -> None:
    images.provide("audit", "spark")
    scene.orphans(scene.topic("left"), 4)
    small = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    spark = {
        "executors": EXECUTORS,
        "executorMemory": "512m",
        "driverMemory": "700m",
        # Executors that have ended stay to be counted; they request few processors, since a test's node has two.
        "submitOptions": "--conf spark.kubernetes.executor.deleteOnTermination=false "
        "--conf spark.kubernetes.executor.request.cores=100m",
    }
    audited.upgrade(
        {"audit": {"enabled": True, "options": _OPTIONS, "engine": "spark", "spark": spark, "resources": small}}
    )
    first_night(scene, audited, "spark")
    audited.run_job_of(CRON_JOB, "spark-second")
    tally.fault("nightly audit, on Spark", 2)
    executors = audited.namespace.items("pods", "spark-role=executor")
    assert len(executors) == 2 * EXECUTORS, [pod["metadata"]["name"] for pod in executors]
    again = f"""set -eu
        here=/audits; newest=$(ls $here/audits | tail -1); before=$(ls $here/audits | tail -2 | head -1)
        pulsar-sidecar audit run --dump $here/dumps/$newest --listing $here/listings/$newest --output /tmp/again \
            --previous $here/audits/$before {_OPTIONS} >&2 || [ $? -eq 2 ]
        for made in $here/audits/$newest /tmp/again; do
            {apply_on_one_line("$made")}
        done"""
    of_spark, embedded = answers(run_beside(audited, "spark-compared", again))
    assert of_spark["plan"] == embedded["plan"]
    assert of_spark["ledgers"], "the plan has no ledgers, so its hash compares nothing"


def first_night(scene: Scene, release: Release, name: str) -> None:
    """An audit, and what must have been written after it before the next one may plan anything."""
    release.run_job_of(CRON_JOB, f"{name}-first")
    scene.workload.fill(scene.topic("something-new"), 1)
    pause(_BETWEEN_NIGHTS_SECONDS)
    scene.workload.fill(scene.topic("something-newer"), 1)


def run_beside(release: Release, name: str, script: str) -> str:
    """Run a script in a pod like those of the CronJob, with its volume and its secrets; return its output."""
    job = release.namespace.get("cronjob", CRON_JOB)["spec"]["jobTemplate"]["spec"]
    job["backoffLimit"] = 0
    (container,) = job["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", script]
    release.namespace.apply([{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": job}])
    return release.wait_for_job(name)


def apply_on_one_line(audit: str) -> str:
    """Return a command that prints the plan so that a pod's log, which mixes both of its streams, keeps it whole."""
    return f"pulsar-sidecar audit apply {audit} --output-format json | tr -d '\\n'; echo"


def answers(text: str) -> list[dict[str, Any]]:
    """Return the JSON documents of one line each in a command's output."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
