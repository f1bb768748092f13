"""``python -m tests.soak --hours 2``: mixed work on a real cluster, and whether everything stays flat.

Three sidecars share the work: two live as long as it does, one is killed every few minutes. The exit code is 1 if
anything was lost or left, if a cancelled message came, or if a figure grew in the last quarter of the time.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec

from tests.cluster.background import running_until
from tests.cluster.choosing import FAST_SESSIONS
from tests.cluster.running import LocalClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import Workload
from tests.soak.drawing import draw, table
from tests.soak.judging import judge, series_of
from tests.soak.samples import Sample, look, read_samples
from tests.soak.work import Callers, Tally, Work

_LOOK_SECONDS = 10.0
_PLAIN, _TWO_ARENAS, _MORTAL = "lives on", "lives on, 2 arenas", "killed again and again"
_SETTINGS = {
    "delayed_message_cancelling_enabled": "true",
    "ledger_deletion_watch": "append",
    "two_phase_deletion_outcome_retention_in_minutes": 30,
    "two_phase_deletion_reconsume_later_in_seconds": 60,
    "two_phase_deletion_in_use_settle_in_seconds": 60,
    "two_phase_deletion_open_ledger_min_age_in_seconds": 60,
    "two_phase_deletion_unlinked_ledger_min_age_in_seconds": 60,
    "log_format": "text",
}
"""The rest has its defaults: half an hour and a minute, so that all of it comes to its end within the run."""

_BROKER_CONF = {**FAST_SESSIONS, "brokerDeleteInactiveTopicsEnabled": "false"}


def main() -> int:
    arguments = _arguments()
    if arguments.draw:
        return _report(read_samples(arguments.samples), arguments.picture, Tally())
    tally = Tally()
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-soak-")))
        spec = ClusterSpec(
            scratch / "cluster",
            broker_conf=_BROKER_CONF,
            zookeeper_conf={"admin.enableServer": "true"},
            ends_with_starter=True,
        )
        cluster = LocalClusterUnderTest(stack.enter_context(LocalCluster.up(spec)))
        logs = arguments.samples.with_suffix("")
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        sidecars = stack.enter_context(closing(Sidecars(cluster.addresses, logs)))
        workload = stack.enter_context(closing(Workload(cluster)))
        started = _start(sidecars)
        stop = threading.Event()
        callers = Callers(started, tally, stop)
        work = stack.enter_context(closing(Work(cluster, workload, callers, tally, scratch, arguments.rate)))
        samples = _run(arguments, cluster, work, started, stop, tally)
        work.demand_nothing_is_left(started[0])
    return _report(samples, arguments.picture, tally)


def _start(sidecars: Sidecars) -> list[SidecarProcess]:
    environments = {_PLAIN: {}, _TWO_ARENAS: {"MALLOC_ARENA_MAX": "2"}, _MORTAL: {}}
    started = [sidecars.start_with_defaults_in(environment, **_SETTINGS) for environment in environments.values()]
    for name, sidecar in zip(environments, started, strict=True):
        sidecar.name = name
    return started


def _run(
    arguments: argparse.Namespace,
    cluster: LocalClusterUnderTest,
    work: Work,
    sidecars: Sequence[SidecarProcess],
    stop: threading.Event,
    tally: Tally,
) -> list[Sample]:
    works = (
        work.record_ledgers_on,
        work.delete_topics_on,
        work.leak_on,
        work.cancel_on,
        partial(work.audit_on, arguments.audit_every_seconds),
        partial(work.kill_on, sidecars[-1], arguments.kill_every_seconds),
    )
    samples: list[Sample] = []
    ended = _ended_by_signal()
    began = time.monotonic()
    with (
        arguments.samples.open("w") as file,
        running_until(stop, [partial(tally.going_on, each, stop) for each in works]),
    ):
        while (seconds := time.monotonic() - began) < arguments.hours * 3_600 and not ended.wait(_LOOK_SECONDS):
            samples.append(look(seconds, sidecars, cluster.addresses, work.namespaces))
            file.write(samples[-1].line() + "\n")
            file.flush()
    return samples


def _ended_by_signal() -> threading.Event:
    """Set by Ctrl-C or SIGTERM: the work ends early and is reported."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _report(samples: Sequence[Sample], picture: Path, tally: Tally) -> int:
    courses = [judge(series) for series in series_of(samples, [_PLAIN, _TWO_ARENAS])]
    minutes = samples[-1].seconds / 60
    _show(table(courses, f"{minutes:,.0f} minutes of mixed work").markdown())
    for what, count in sorted(tally.done.items()):
        _show(f"- {what}: {count:,}")
    for wrong in tally.wrong:
        _show(f"- **wrong**: {wrong}")
    draw(samples, picture)
    return 1 if tally.wrong or not all(course.is_flat for course in courses) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=4.0, help="deletions a second, and as many cancellations")
    parser.add_argument("--kill-every-seconds", type=float, default=300.0)
    parser.add_argument("--audit-every-seconds", type=float, default=600.0)
    parser.add_argument("--samples", type=Path, default=Path("soak.jsonl"), help="each look, one line of JSON")
    parser.add_argument("--picture", type=Path, default=Path("docs/soak.svg"))
    parser.add_argument("--draw", action="store_true", help="only report and draw what --samples has")
    return parser.parse_args()


def _show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
