"""The chart, installed beside a Pulsar in pods, and its sidecars, as the tests of other clusters see them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pulsar_sidecar.settings.sources import setting_key

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import until
from tests.cluster.sidecars import QUICK, SidecarClient
from tests.cluster.tokens import KEY, token
from tests.kubernetes.cluster import kill_pod
from tests.kubernetes.kubectl import CommandFailedError, Namespace

NAME = "pulsar-sidecar"
_KEY_SECRET = "pulsar-token-symmetric-key"
_CLIENT_SECRET = "pulsar-token-admin"
_CHART = PROJECT / "deploy" / "helm"
_EXAMPLE = _CHART / "examples" / "beside-pulsar-chart.yaml"
_PORT = 8750
_REPLICAS = 2
_PATIENT = {"metadata_store_session_timeout_millis": 10_000}
"""A node that shares its processors with others lets a session of 4 s end."""
_READY_SECONDS = 300
_JOB_SECONDS = 900
_LINES = 60


class SidecarPods(SidecarClient):
    """Client of a Service or a pod."""

    def __init__(self, name: str, url: str, token: str, release: "Release") -> None:
        super().__init__(name, url, token)
        self._release = release

    def log(self) -> str:
        return self._release.log()


class Release:
    """The release and its pods."""

    def __init__(self, namespace: Namespace, images: Mapping[str, object], domain: str, directory: Path) -> None:
        self.namespace = namespace
        self._images = images
        self._domain = domain
        self._values = directory / "values.json"
        self.pods = [f"{NAME}-{number}" for number in range(_REPLICAS)]

    # --- an operator's work ----------------------------------------------------------------------------------------

    def make_secrets(self) -> None:
        """Make secrets with the names that Pulsar's chart gives them."""
        self.make_secret(_KEY_SECRET, SECRETKEY=KEY.decode())
        self.make_secret(_CLIENT_SECRET, TOKEN=token("admin"))

    def make_secret(self, name: str, **content: str) -> None:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": content}
        self.namespace.apply([secret])

    def upgrade(self, values: Mapping[str, Any] | None = None, *, wait: bool = True) -> None:
        """Install it, or change its values: those of tests and of ``values``, sections merged."""
        self._values.write_text(json.dumps(_merged(self._base(), values or {})))
        files = ("--values", str(_EXAMPLE), "--values", str(self._values))
        waiting = ("--wait", f"--timeout={_READY_SECONDS}s") if wait else ()
        self.namespace.helm("upgrade", "--install", NAME, str(_CHART / NAME), *files, *waiting)

    def rollback(self) -> None:
        """Roll back to the previous revision."""
        self.namespace.helm("rollback", NAME, "--wait", f"--timeout={_READY_SECONDS}s")

    def uninstall(self) -> None:
        """Uninstall the release, and wait until its pods are gone."""
        self.namespace.helm("uninstall", NAME, "--ignore-not-found", "--wait")
        until(lambda: not self._existing(), "the sidecars' pods are gone", _READY_SECONDS)

    def evict(self, pod: str) -> bool:
        """Evict it as ``kubectl drain`` does; return True if the budget allows it now."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{self.namespace.name}/pods/{pod}/eviction"
        try:
            self.namespace.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        except CommandFailedError as error:
            if "disruption budget" in str(error):
                return False
            raise
        return True

    def kill(self, pod: str) -> None:
        kill_pod(self.namespace, pod)

    def wait_until_ready(self) -> None:
        for pod in self.pods:
            until(
                lambda pod=pod: self.namespace.pod_is_ready(pod), f"{pod} is ready", _READY_SECONDS, pause_seconds=0.5
            )

    def run_job_of(self, cron_job: str, name: str) -> str:
        """Run a CronJob's work now, until it has ended; its log."""
        self.namespace.kubectl("create", "job", name, f"--from=cronjob/{cron_job}")
        return self.wait_for_job(name)

    def wait_for_job(self, name: str) -> str:
        def ended() -> str | None:
            conditions = self.namespace.get("job", name)["status"].get("conditions", [])
            return next(
                (each["type"] for each in conditions if each["status"] == "True" and each["type"] in _ENDS), None
            )

        how = until(ended, f"the job {name} has ended", _JOB_SECONDS, pause_seconds=1)
        log = self.namespace.logs(f"job/{name}", "--all-containers", "--tail=-1")
        assert how == "Complete", f"the job {name} failed:\n{log[-3_000:]}"
        return log

    # --- as tests of other clusters see sidecars -------------------------------------------------------------------

    @property
    def service(self) -> SidecarClient:
        """Any of them, as callers reach them."""
        return self._client(NAME, f"{NAME}.{self._domain}")

    def pod(self, name: str) -> SidecarClient:
        return self._client(name, f"{name}.{NAME}-headless.{self._domain}")

    @property
    def running(self) -> list[SidecarClient]:
        return [self.pod(pod) for pod in self.pods if self.namespace.pod_is_ready(pod)]

    def shared(self) -> SidecarClient:
        """Return the Service, with both sidecars behind it."""
        if not self._existing():
            self.upgrade()
        self.wait_until_ready()
        return self.service

    def end_all(self) -> None:
        self.uninstall()

    def exit_messages(self, pod: str) -> str:
        """Return the termination messages of a pod's containers, as ``kubectl describe`` shows them."""
        statuses = [each["status"] for each in self._existing() if each["metadata"]["name"] == pod]
        containers = [container for status in statuses for container in status.get("containerStatuses", [])]
        states = [container[state] for container in containers for state in ("state", "lastState")]
        return "\n".join(str(state.get("terminated", {}).get("message", "")) for state in states)

    def identities(self) -> set[str]:
        """Return the pods' unique ids, which differ between pods of the same name."""
        return {str(pod["metadata"]["uid"]) for pod in self._existing()}

    def log(self) -> str:
        """Return the ends of its pods' logs."""
        return "\n".join(
            self.namespace.logs(str(pod["metadata"]["name"]), f"--tail={_LINES}") for pod in self._existing()
        )

    # --- small things ----------------------------------------------------------------------------------------------

    def _existing(self) -> list[dict[str, Any]]:
        return self.namespace.items("pods", f"app.kubernetes.io/instance={NAME},app.kubernetes.io/component=sidecar")

    def _client(self, name: str, host: str) -> SidecarClient:
        return SidecarPods(name, f"http://{host}:{_PORT}", token("admin"), self)

    def _base(self) -> dict[str, Any]:
        return {
            "images": self._images,
            "auth": {"authentication": {"jwt": {"usingSecretKey": True, "secretName": _KEY_SECRET}}},
            "sidecar": {
                "configData": {setting_key(name): value for name, value in {**QUICK, **_PATIENT}.items()},
                # Kinds that only clusters with the Prometheus Operator know.
                "podMonitor": {"enabled": False},
                "prometheusRule": {"enabled": False},
            },
            "audit": {"enabled": False},
        }


_ENDS = frozenset({"Complete", "Failed"})


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(one[key], value) if isinstance(value, Mapping) and key in one else value
        for key, value in other.items()
    }
    return {**one, **both}
