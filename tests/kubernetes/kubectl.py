"""``kubectl`` and ``helm`` as tests call them: a response, or the reason why there is none."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any

_SECONDS = 600


class CommandFailedError(AssertionError):
    """A command failed; the text has its error output."""


def run(*command: str, stdin: str | None = None, seconds: float = _SECONDS) -> str:
    """Run a command, and return its output.

    Raises:
        CommandFailedError: it failed.
    """
    ran = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=seconds)
    if ran.returncode:
        raise CommandFailedError(f"{' '.join(command)}: {ran.stderr.strip()}")
    return ran.stdout


class Namespace:
    """A namespace of the cluster."""

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
        return json.loads(self.kubectl("get", kind, name, "-o", "json"))

    def items(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        return json.loads(self.kubectl("get", kind, "-l", selector, "-o", "json"))["items"]

    def pod_is_ready(self, name: str) -> bool:
        """Return True if the pod exists, is ready and is not terminating."""
        found = self.kubectl("get", "pod", name, "--ignore-not-found", "-o", "json")
        return bool(found) and is_ready(json.loads(found))

    def logs(self, name: str, *options: str) -> str:
        return self.kubectl("logs", name, *options)


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
