"""Response times of each route while a broker, all brokers, ZooKeeper or all bookies hang.

Everything is asked in the first seconds, while 50 passed reads wait; and again half a minute later, when the sidecar
knows what hangs.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.hanging import ESTIMATE, PASSED_READ, STATUS, Answered, Callers, ask, hung
from tests.cluster.patience import holds_soon
from tests.cluster.running import LocalClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import Workload
from tests.reporting import Table

NAME = "hanging"
HANGS = {
    "one broker hung": ("broker-1",),
    "both brokers hung": ("broker-1", "broker-2"),
    "all bookies hung": ("bookie-1", "bookie-2"),
    "ZooKeeper hung": ("zookeeper",),
}
_ROUTES = (
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", ESTIMATE),
    ("GET", STATUS),
    ("GET", f"{BASE}/topic-deletions"),
    ("GET", PASSED_READ),
    ("PUT", "/admin/v2/tenants/made"),
)
_LOOK_AGAIN_SECONDS = 30.0
_READY_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reads", type=int, default=50, help="passed reads that wait meanwhile")
    parser.add_argument("--only", choices=list(HANGS), help="one of the cases")


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    return [_table(case, arguments.reads) for case in ([arguments.only] if arguments.only else HANGS)]


def _table(case: str, reads: int) -> Table:
    """Each case has a cluster of its own: bookies whose session has ended exit, and brokers do not forget at once."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pulsar-sidecar-hanging-")))
        spec = ClusterSpec(scratch / "cluster", ends_with_starter=True)
        cluster = LocalClusterUnderTest(stack.enter_context(LocalCluster.up(spec)))
        workload = stack.enter_context(closing(Workload(cluster)))
        sidecars = Sidecars(cluster.addresses, scratch)
        stack.callback(sidecars.end_all)
        sidecar = sidecars.start_with_defaults(web_service_url=cluster.addresses.member_urls["broker-1"])
        topics = [parse_topic_name(f"persistent://public/default/topic-{number}") for number in range(2)]
        for topic in topics:
            workload.fill(topic, 1)
        for path in (ESTIMATE, STATUS):
            ask(sidecar, "GET", path)
        deletions = [("DELETE", f"/admin/v2/{workload.of_topic(topic)}?force=true") for topic in topics]
        with hung(cluster, HANGS[case]):
            waiting = Callers(reads, partial(ask, sidecar, "GET", PASSED_READ))
            first = _asked(sidecar, (*_ROUTES, deletions[0]))
            slowest = max(waiting.wait(), key=lambda answered: answered.seconds)
            time.sleep(_LOOK_AGAIN_SECONDS)
            later = _asked(sidecar, (*_ROUTES, deletions[1]))
        names = [f"`{method} {path}`" for method, path in _ROUTES] + ["a topic's deletion"]
        rows = [(name, _shown(one), _shown(two)) for name, one, two in zip(names, first, later, strict=True)]
        rows.append((f"the slowest of {reads} passed reads", _shown(slowest), ""))
        return Table(case, ("", "at once", "later"), rows, [_readiness(sidecar)])


def _asked(sidecar: SidecarProcess, requests: Sequence[tuple[str, str]]) -> Sequence[Answered]:
    """All at the same time: one that hangs does not hold up the next."""
    calls = [Callers(1, partial(ask, sidecar, method, path)) for method, path in requests]
    return [call.wait()[0] for call in calls]


def _shown(answered: Answered) -> str:
    status = answered.status or "no answer"
    age = "" if answered.age_ms is None else f", {answered.age_ms / 1000:.0f} s old"
    return f"{status} after {answered.seconds:.1f} s{age}"


def _readiness(sidecar: SidecarProcess) -> str:
    began = time.monotonic()
    if not holds_soon(lambda: sidecar.is_ready, _READY_SECONDS):
        return f"Not ready {_READY_SECONDS:.0f} s after they resume: {ask(sidecar, 'GET', '/readyz').reason}"
    return f"Ready again {time.monotonic() - began:.1f} s after they resume."
