"""Hanging members, and a sidecar's response times meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import requests
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess

ESTIMATE = "/admin/v2/broker-stats/estimatedInflightDeletionLedgerCount"
STATUS = f"{BASE}/status"
PASSED_READ = "/admin/v2/clusters"
AGE = "X-Pulsar-Sidecar-Age-Ms"


@dataclass(frozen=True, slots=True)
class Answered:
    """Outcome of a request.

    Attributes:
        status: HTTP status; 0 without a response in time.
        reason: reason of an error.
        age_ms: age of the answered reading; None if the response has none.
    """

    status: int
    seconds: float
    reason: str = ""
    age_ms: int | None = None


def ask(sidecar: SidecarProcess, method: str, path: str, patience_seconds: float = 60.0) -> Answered:
    """Send a request and return its outcome, with or without a response."""
    began = time.monotonic()
    try:
        answer = requests.request(method, sidecar.url + path, timeout=patience_seconds)
    except requests.RequestException as error:
        return Answered(0, time.monotonic() - began, type(error).__name__)
    seconds = time.monotonic() - began
    document = answer.json() if "json" in answer.headers.get("Content-Type", "") else None
    fields = document if isinstance(document, dict) else {}
    age_ms = int(answer.headers[AGE]) if AGE in answer.headers else None
    if "asOfMs" in fields:
        age_ms = SystemClock().now_ms() - fields["asOfMs"]
    return Answered(answer.status_code, seconds, str(fields.get("reason") or ""), age_ms)


@contextmanager
def hung(cluster: ClusterUnderTest, members: Sequence[str]) -> Iterator[None]:
    """Freeze members (SIGSTOP) while the body runs."""
    for member in members:
        cluster.stop(member)
    try:
        yield
    finally:
        for member in members:
            cluster.cont(member)


class Callers:
    """Concurrent requests."""

    def __init__(self, count: int, call: Callable[[], Answered]) -> None:
        self.answers: list[Answered] = []
        self._threads = [threading.Thread(target=lambda: self.answers.append(call())) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def wait(self) -> Sequence[Answered]:
        """Wait for all requests and return their outcomes."""
        for thread in self._threads:
            thread.join()
        return self.answers
