"""``serve`` while the cluster is down: processes, with closed ports and with ports that accept and never respond."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.bootstrap.app import ClusterWatch
from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import UnreachableError

from tests.cluster.patience import until

ROOT = Path(__file__).parents[3]
CLOCK = SystemClock()
NEVER = threading.Event()
STATUS = "/admin/v2/ledger-deletion/status"
AT_ONCE_SECONDS = 5.0
"""Where it is not at once, it is a minute."""


@contextmanager
def a_port(*, hanging: bool) -> Iterator[int]:
    """One without a listener, or one that accepts and never responds."""
    # Not one of the ports that the system hands out: other tests would listen there, and receive this sidecar's
    # requests.
    (port,) = free_ports(1)
    with socket.create_server((LOOPBACK, port)) if hanging else nullcontext():
        yield port


@contextmanager
def serving(port: int, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A sidecar whose brokers and ZooKeeper are at ``port``."""
    (own,) = free_ports(1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pulsar_sidecar", "serve", "--listen", f"127.0.0.1:{own}",
         "--web-service-url", f"http://127.0.0.1:{port}", "--broker-service-url", f"pulsar://127.0.0.1:{port}",
         "--metadata-store-url", f"zk:127.0.0.1:{port}", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=environment,
    )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{own}"
        until(lambda: process.poll() is not None or answers(url), "the server answers")
        assert process.poll() is None, process.communicate()[0]
        yield process, url
    finally:
        process.kill()
        process.communicate()


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/livez", timeout=AT_ONCE_SECONDS).status_code == 200
    except requests.RequestException:
        return False


def reason(url: str, path: str) -> str:
    answer = requests.get(url + path, timeout=AT_ONCE_SECONDS)
    assert answer.status_code == 503, answer.text
    return str(answer.json()["reason"])


@pytest.mark.parametrize("hanging", [False, True])
def test_while_brokers_are_away_at_the_start_the_sidecar_names_them_and_goes_on(hanging: bool) -> None:
    with a_port(hanging=hanging) as port, serving(port) as (process, url):
        until(lambda: f"127.0.0.1:{port}" in reason(url, "/readyz"), "a host is named")
        for path in (STATUS, "/metrics"):
            assert f"127.0.0.1:{port}" in reason(url, path)
        CLOCK.wait_seconds(2, NEVER)
        assert answers(url)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=10)
        assert process.returncode == 0, output
        assert "Traceback" not in output


@pytest.mark.parametrize(("hanging", "flags"), [(False, ()), (True, ("--topic-two-phase-deletion-enabled",))])
def test_readiness_is_honest_whatever_is_switched_on(hanging: bool, flags: tuple[str, ...]) -> None:
    with a_port(hanging=hanging) as port, serving(port, "--cluster-name", "east", *flags) as (process, url):
        until(lambda: f"127.0.0.1:{port}" in reason(url, "/readyz"), "a host is named")
        CLOCK.wait_seconds(2, NEVER)
        assert f"127.0.0.1:{port}" in reason(url, "/readyz")
        assert answers(url)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert process.returncode in (0, 1), output
        assert "Traceback" not in output


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a sidecar with authentication, behind a proxy that ends TLS."""
    key = tmp_path_factory.mktemp("keys") / "token.key"
    key.write_bytes(b"x" * 32)
    flags = ("--authentication-enabled", "--token-secret-key", f"file://{key}", "--super-user-roles", "admin")
    with a_port(hanging=False) as port, serving(port, *flags, "--dashboard-url", "https://sidecar.example") as (_, url):
        yield url


def test_a_caller_without_a_token_learns_nothing_of_a_start(guarded: str) -> None:
    assert requests.get(guarded + STATUS, timeout=AT_ONCE_SECONDS).status_code == 401
    assert answers(guarded)


def test_cookies_are_bound_to_tls_where_a_proxy_ends_it(guarded: str) -> None:
    answer = requests.get(f"{guarded}/ui/", timeout=60, allow_redirects=False)
    assert answer.headers["set-cookie"].startswith("__Host-pulsar-sidecar-form=")
    assert answer.headers["set-cookie"].endswith("; Secure")


def test_the_watch_reports_what_is_away_and_that_it_came_back() -> None:
    away = threading.Event()
    away.set()

    def ask() -> None:
        if away.is_set():
            raise UnreachableError("nobody answers at broker-1")

    with ExitStack() as stack:
        watch = ClusterWatch(CLOCK)
        stack.callback(watch.close)
        assert watch.missing() is None
        watch.watch("the brokers at broker-1", ask)
        until(lambda: watch.missing() == "nobody answers at broker-1", "the absence is reported")
        assert watch.missing("the brokers at broker-1") == "nobody answers at broker-1"
        assert watch.missing("ZooKeeper at z:2181") is None
        away.clear()
        until(lambda: watch.missing() is None, "the return is reported")


def test_the_watch_never_waits_for_an_answer() -> None:
    watch = ClusterWatch(CLOCK)
    watch.watch("ZooKeeper at z:2181", lambda: NEVER.wait(20))
    begin = CLOCK.monotonic_seconds()
    assert watch.missing() == "ZooKeeper at z:2181 has not answered yet"
    watch.close()
    assert CLOCK.monotonic_seconds() - begin < AT_ONCE_SECONDS
