"""Samples of a soak: the sidecars' processes, and what lies in the cluster.

Each look is one line of JSON, written at once, so that a run that was broken off has its figures.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import requests
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.patience import OPERATION_SECONDS
from tests.cluster.sidecars import SidecarProcess

_MIB = 1024.0


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """A process: its id, memory in MiB, open descriptors, threads.

    Resident memory counts pages of programs and libraries too, which the kernel takes away and reads again as it
    likes; the process's own allocations are ``anonymous_mb``.
    """

    pid: int
    resident_mb: float
    anonymous_mb: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Sidecars and cluster at one time.

    Attributes:
        seconds: since the work began.
        sidecars: by name; one that is down at the moment is missing.
        cluster: ``nodes`` and ``watches`` of ZooKeeper, ``topics`` of all namespaces, ``waiting`` records and the
            ``operations`` (topic deletions) that run. Empty while the cluster does not respond.
    """

    seconds: float
    sidecars: Mapping[str, ProcessSample]
    cluster: Mapping[str, float]

    def line(self) -> str:
        return json.dumps(asdict(self))


def read_samples(path: Path) -> list[Sample]:
    """Return the samples that a run has written."""
    documents = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        Sample(
            document["seconds"],
            {name: ProcessSample(**found) for name, found in document["sidecars"].items()},
            document["cluster"],
        )
        for document in documents
    ]


def look_at_process(pid: int) -> ProcessSample | None:
    """Return a sample of the process, None if it has ended."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        resident, anonymous = (int(status[name].split()[0]) / _MIB for name in ("VmRSS", "RssAnon"))
        return ProcessSample(pid, resident, anonymous, descriptors, int(status["Threads"]))
    except (OSError, KeyError):
        return None


def look(
    seconds: float, sidecars: Sequence[SidecarProcess], addresses: ClusterAddresses, namespaces: Sequence[str]
) -> Sample:
    """Take a sample."""
    processes = {sidecar.name: look_at_process(sidecar.pid) for sidecar in sidecars if sidecar.is_running}
    found = {name: process for name, process in processes.items() if process is not None}
    try:
        return Sample(seconds, found, _look_at_cluster(sidecars[0], addresses, namespaces))
    except (requests.RequestException, AssertionError, KeyError, ValueError):
        return Sample(seconds, found, {})


def _look_at_cluster(
    sidecar: SidecarProcess, addresses: ClusterAddresses, namespaces: Sequence[str]
) -> dict[str, float]:
    monitor = _json(f"{addresses.zookeeper_admin_url}/commands/monitor")
    broker = addresses.web_service_urls[0]
    topics = sum(len(_json(f"{broker}/admin/v2/persistent/{namespace}")) for namespace in namespaces)
    status = sidecar.status()
    return {
        "nodes": monitor["znode_count"],
        "watches": monitor["watch_count"],
        "topics": topics,
        "waiting": (status["inflight"] or {"count": 0})["count"],
        "operations": status["runningTopicDeletions"],
    }


def _json(url: str) -> "dict[str, float]":
    answer = requests.get(url, timeout=OPERATION_SECONDS)
    answer.raise_for_status()
    return answer.json()
