"""A broker is killed while clients call through the sidecar: responses stay honest, and none takes forever."""

import threading
import time
from collections import Counter
from functools import partial

import requests

from tests.admin_clients.preparing import Preparing
from tests.cluster.background import running_until
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.tokens import token

_CALLERS = 8
_HONEST = {200, 502, 503, 504}


def test_calls_are_answered_while_a_broker_dies(
    guarded: ClusterUnderTest, sidecar: SidecarProcess, preparing: Preparing
) -> None:
    scene = preparing.scene("killed", "broker")
    headers = {"Authorization": f"Bearer {token('admin')}"}
    paths = (
        f"/admin/v2/namespaces/{scene.tenant}/ready",
        f"/admin/v2/persistent/{scene.tenant}/ready/plain/stats",
        f"/lookup/v2/topic/persistent/{scene.tenant}/ready/plain",
        "/admin/v2/tenants",
    )
    answers: Counter[tuple[str, int]] = Counter()
    slowest = 0.0

    def ask(path: str) -> int:
        nonlocal slowest
        begin = time.monotonic()
        status = requests.get(sidecar.url + path, headers=headers, timeout=OPERATION_SECONDS).status_code
        slowest = max(slowest, time.monotonic() - begin)
        answers[path, status] += 1
        return status

    def ask_again(number: int) -> None:
        while not stop.is_set():
            ask(paths[number % len(paths)])

    def all_well() -> bool:
        return all(ask(path) == 200 for path in paths)

    stop = threading.Event()
    until(all_well, "every path is answered")
    with running_until(stop, [partial(ask_again, number) for number in range(_CALLERS)]):
        until(lambda: sum(answers.values()) > 10 * _CALLERS, "calls flow")
        guarded.kill("broker-1")
        try:
            until(all_well, "every path is answered by the other broker")
        finally:
            guarded.restart("broker-1")
    assert {status for _, status in answers} <= _HONEST, answers
    assert slowest < OPERATION_SECONDS
