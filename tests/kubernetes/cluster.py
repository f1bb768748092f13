"""A small Pulsar in the pods of a Kubernetes, as the tests of other clusters see one."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.deletion import BROKER_CONF
from tests.cluster.patience import until
from tests.cluster.tokens import TOKEN_CONF
from tests.kubernetes.kubectl import Namespace

CLUSTER_NAME = "in-pods"
IMAGE = f"apachepulsar/pulsar:{DEFAULT_VERSION}"
_MEMBERS = {
    "zookeeper": "pulsar-zookeeper-0",
    "bookie-1": "pulsar-bookie-0",
    "bookie-2": "pulsar-bookie-1",
    "broker-1": "pulsar-broker-0",
    "broker-2": "pulsar-broker-1",
}
_AFTER_SETTING_UP = frozenset({("StatefulSet", "pulsar-bookie"), ("StatefulSet", "pulsar-broker")})
"""A bookie that finds no metadata of its cluster ends."""
_FILE = Path(__file__).with_name("pulsar.yaml")
_START_SECONDS = 600


class PodsUnderTest:
    """Members are pods of StatefulSets, which start each one again that ends."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        brokers = [f"pulsar-broker-{number}.pulsar-broker.{self.domain}" for number in range(2)]
        self.addresses = ClusterAddresses(
            web_service_urls=tuple(f"http://{broker}:8080" for broker in brokers),
            broker_service_url=f"pulsar://{','.join(f'{broker}:6650' for broker in brokers)}",
            metadata_store_url=f"zk:pulsar-zookeeper.{self.domain}:2181",
            version=DEFAULT_VERSION,
            cluster_name=CLUSTER_NAME,
        )

    @property
    def domain(self) -> str:
        return f"{self._namespace.name}.svc.cluster.local"

    def start(self) -> None:
        """Start the members, and wait until all are ready."""
        text = _FILE.read_text().replace("NAMESPACE", self._namespace.name).replace("CLUSTER", CLUSTER_NAME)
        settings = {f"PULSAR_PREFIX_{name}": value for name, value in {**BROKER_CONF, **TOKEN_CONF}.items()}
        text = text.replace("IMAGE", IMAGE).replace("SETTINGS", json.dumps(settings))
        documents = [_restricted(each) for each in yaml.safe_load_all(text)]
        after = [each for each in documents if (each["kind"], each["metadata"]["name"]) in _AFTER_SETTING_UP]
        self._namespace.apply([each for each in documents if each not in after])
        until(self._is_set_up, "the cluster's metadata is written", _START_SECONDS, pause_seconds=1)
        self._namespace.apply(after)
        for name in _MEMBERS:
            self.wait_until_ready(name)

    def _is_set_up(self) -> bool:
        return bool(self._namespace.get("job", "pulsar-init")["status"].get("succeeded"))

    def wait_until_ready(self, name: str) -> None:
        pod = _MEMBERS[name]
        until(lambda: self._namespace.pod_is_ready(pod), f"{pod} is ready", _START_SECONDS, pause_seconds=1)

    def kill(self, name: str) -> None:
        """SIGKILL where this machine runs it; the pod goes at once, and another pod of its name comes."""
        kill_pod(self._namespace, _MEMBERS[name])

    def restart(self, name: str) -> None:
        """Wait for the StatefulSet to restart the member."""
        self.wait_until_ready(name)

    def is_running(self, name: str) -> bool:
        return self._namespace.pod_is_ready(_MEMBERS[name])

    def log(self, name: str, lines: int = 40) -> str:
        return self._namespace.logs(_MEMBERS[name], f"--tail={lines}")


def _restricted(document: dict[str, Any]) -> dict[str, Any]:
    """Restrict the object's pods as the strictest namespace demands."""
    pod = document.get("spec", {}).get("template", {}).get("spec")
    if pod is not None:
        pod["automountServiceAccountToken"] = False
        pod["terminationGracePeriodSeconds"] = 5
        pod["securityContext"] = {
            "runAsNonRoot": True, "runAsUser": 10_000, "fsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}
        }  # fmt: skip
        for container in pod["containers"]:
            container["securityContext"] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return document


def kill_pod(namespace: Namespace, name: str) -> None:
    """End a pod as a failing node does: with no time to close anything."""
    pod = namespace.get("pod", name)
    for container in pod["status"].get("containerStatuses", []):
        _kill_container(container)
    namespace.kubectl("delete", "pod", name, "--grace-period=0", "--force", "--wait=false")
    until(lambda: _is_another(namespace, name, pod), f"another {name} is there")


def _kill_container(container: dict[str, Any]) -> None:
    """A kubelet gives even a deleted pod's processes two seconds; a node that we started can be asked for less."""
    identifier = str(container.get("containerID", "")).removeprefix("containerd://")
    if identifier and "CONTAINERD_ADDRESS" in os.environ:
        command = ["ctr", "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", identifier]
        subprocess.run(command, check=False, capture_output=True)


def _is_another(namespace: Namespace, name: str, before: dict[str, Any]) -> bool:
    found = namespace.kubectl("get", "pod", name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
    return bool(found) and found != before["metadata"]["uid"]
