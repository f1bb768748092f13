"""``kubectl`` and ``helm`` as tests call them: an answer, or the reason why there is none."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

_SECONDS = 600


class CommandFailedError(AssertionError):
    """What a command wrote when it failed."""


def run(*command: str, stdin: str | None = None, seconds: float = _SECONDS) -> str:
    """What a command prints.

    Raises:
        CommandFailedError: it failed.
    """
    ran = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=seconds)
    if ran.returncode:
        raise CommandFailedError(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout


class Namespace:
    """One namespace of the cluster."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create(self, **labels: str) -> None:
        self.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name, "labels": labels}}])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return run("kubectl", "--namespace", self.name, *arguments, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        return run("helm", "--namespace", self.name, *arguments)

    def apply(self, objects: Sequence[object]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return document

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]
        return found

    def pod_is_ready(self, name: str) -> bool:
        """Whether there is such a pod, and it is ready and not about to end."""
        found = self.kubectl("get", "pod", name, "--ignore-not-found", "-o", "json")
        return bool(found) and is_ready(json.loads(found))

    def logs(self, name: str, *options: str) -> str:
        return self.kubectl("logs", name, *options)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
