"""``docker-compose.yml`` as its head has it: up, the demo's main act through it, kills, and down.

Brokers and sidecars have the demo's short times and small ledgers. `bookie-2` dies at its first start, as it once did
by itself, so that all of this happens only if its restart policy starts it again.
"""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from pulsar_sidecar.demo.deleting import delete_again, delete_topics, make_topics
from pulsar_sidecar.demo.environment import BROKER_CONF, SIDECAR_ENVIRONMENT
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS
from ruamel.yaml import YAML

from tests.cluster.choosing import COMPOSE_ADDRESSES, FAST_SESSIONS, PROJECT
from tests.cluster.compose import FILE, PROJECT_NAME, Compose, composed, with_settings
from tests.cluster.oracles import Oracles, OutcomeLog
from tests.cluster.patience import OPERATION_SECONDS, PATIENCE_SECONDS, until
from tests.cluster.running import BROKERS, ComposeClusterUnderTest
from tests.cluster.topics import Workload, unique

pytestmark = pytest.mark.containers

SIDECARS = {"sidecar-1": "http://127.0.0.1:8750", "sidecar-2": "http://127.0.0.1:8751"}
TOPICS = 40
KILL_AFTER_ANSWERS = 8
PROMETHEUS, GRAFANA = "http://127.0.0.1:9090", "http://admin:admin@127.0.0.1:3000"
FINDINGS = 2
_LABEL = f"label=com.docker.compose.project={PROJECT_NAME}"
_SECONDS = 120


def docker(*arguments: str) -> str:
    return subprocess.run(("docker", *arguments), capture_output=True, text=True, check=True, timeout=_SECONDS).stdout


def dies_once(service: str) -> dict[str, Any]:
    command = YAML(typ="safe").load(PROJECT / FILE)["services"][service]["command"]
    program = command.removeprefix('bash -c "').removesuffix('"')
    return {"command": ["bash", "-c", f"[ -e /tmp/died ] || {{ touch /tmp/died; exit 2; }}; {program}"]}


PATIENT = {"PULSAR_SIDECAR_TWO_PHASE_DELETION_MAX_RETRY_DELETE_COUNT": "10000"}
"""Brokers in containers are back after half a minute."""

CHANGES: Mapping[str, Any] = {
    **{name: with_settings({**BROKER_CONF, **FAST_SESSIONS}) for name in BROKERS},
    **{name: {"environment": SIDECAR_ENVIRONMENT | PATIENT} for name in SIDECARS},
    "bookie-2": dies_once("bookie-2"),
}


@dataclass(frozen=True, slots=True)
class ComposeSidecar:
    """A sidecar behind its published port, called with the token that compose made."""

    name: str
    compose: Compose
    headers: Mapping[str, str]

    @property
    def url(self) -> str:
        return SIDECARS[self.name]

    def status(self) -> dict[str, Any]:
        answer = requests.get(
            f"{self.url}/admin/v2/ledger-deletion/status", headers=self.headers, timeout=OPERATION_SECONDS
        )
        assert answer.ok, answer.text
        return dict(answer.json())

    def log(self) -> str:
        return self.compose.run("logs", "--no-color", "--tail", "60", self.name)

    def is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/readyz", timeout=OPERATION_SECONDS).status_code == 200
        except requests.RequestException:
            return False

    def pid(self) -> int:
        """Return the process id on the engine's machine, 0 while there is none."""
        return int(docker("inspect", "--format", "{{.State.Pid}}", self.compose.run("ps", "-aq", self.name).strip()))


@dataclass(frozen=True, slots=True)
class Stack:
    compose: Compose
    cluster: ComposeClusterUnderTest
    workload: Workload
    oracles: Oracles
    sidecars: Sequence[ComposeSidecar]

    def crash(self, sidecar: ComposeSidecar) -> None:
        """Kill the process from outside of the container, so that the engine sees a crash, not an operator's stop."""
        image = f"apachepulsar/pulsar:{COMPOSE_ADDRESSES.version}"
        docker("run", "--rm", "--pid", "host", "--user", "root", image, "bash", "-c", f"kill -9 {sidecar.pid()}")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with composed(PROJECT, tmp_path_factory.mktemp("compose"), [], CHANGES, build=True) as compose:
        token = compose.run("exec", "-T", "sidecar-1", "cat", "/secrets/token").strip()
        cluster = ComposeClusterUnderTest(COMPOSE_ADDRESSES, compose)
        workload = Workload(cluster)
        log = OutcomeLog(workload)
        headers = {"Authorization": f"Bearer {token}"}
        sidecars = [ComposeSidecar(name, compose, headers) for name in SIDECARS]
        yield Stack(compose, cluster, workload, Oracles(workload, log), sidecars)
        log.close()
        workload.close()
    left = {kind: docker(kind, "ls", "--quiet", "--filter", _LABEL) for kind in ("network", "volume")}
    assert {**left, "container": docker("ps", "--all", "--quiet", "--filter", _LABEL)} == {
        "network": "",
        "volume": "",
        "container": "",
    }


def test_a_bookie_that_died_on_its_start_was_started_again(stack: Stack) -> None:
    container = stack.compose.run("ps", "-aq", "bookie-2").strip()
    assert docker("inspect", "--format", "{{.RestartCount}}", container).strip() == "1"


def test_the_command_in_the_head_of_the_file(stack: Stack) -> None:
    lines = [line.removeprefix("#").strip() for line in (PROJECT / FILE).read_text().splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("docker compose exec sidecar-1"))
    words = " ".join(lines[first : first + 2]).replace("\\", " ").split()
    shown = stack.compose.run("exec", "-T", *words[3:])
    assert "sidecar-1" in shown
    assert "sidecar-2" in shown


def test_nothing_leaks_while_brokers_and_a_sidecar_are_killed(stack: Stack) -> None:
    namespace = f"public/t-{unique()}"
    names = make_topics(stack.workload.client, COMPOSE_ADDRESSES.web_service_urls[0], namespace, TOPICS)
    topics = [parse_topic_name(f"persistent://{namespace}/{name}") for name in names]
    before = frozenset().union(*(stack.workload.ledgers(topic).all for topic in topics))
    assert len(before) >= 5 * TOPICS
    killed, other = stack.sidecars
    pid = killed.pid()

    failed = delete_while_members_die(stack, killed, namespace, names)

    until(killed.is_ready, f"{killed.name} was started again\n{killed.log()}")
    assert killed.pid() not in (0, pid)
    assert delete_again(other.url, namespace, failed, threading.Event().wait, 60, other.headers) == []
    stack.oracles.wait_until_drained(other)
    assert stack.oracles.leaks_in(namespace) == (frozenset(), frozenset())
    assert not stack.workload.existing(before)
    left = stack.workload.store.children(f"{MANAGED_LEDGERS}/{namespace}/persistent") or []
    assert not set(names) & set(left)
    stack.oracles.check(other)


def delete_while_members_die(stack: Stack, killed: ComposeSidecar, namespace: str, names: Sequence[str]) -> list[str]:
    """Delete half of the topics through each sidecar while brokers and one sidecar die; return refused names."""
    answers = threading.Semaphore(0)
    halves = zip(stack.sidecars, (names[::2], names[1::2]), strict=True)
    with ThreadPoolExecutor(4) as pool:
        runs = [
            pool.submit(delete_topics, each.url, namespace, half, answers.release, headers=each.headers)
            for each, half in halves
        ]
        for _ in range(KILL_AFTER_ANSWERS):
            assert answers.acquire(timeout=PATIENCE_SECONDS)
        list(pool.map(stack.cluster.kill, BROKERS))
        stack.crash(killed)
        list(pool.map(stack.cluster.restart, BROKERS))
        return [name for run in runs for name in run.result()]


def image_or_skip(service: str) -> None:
    """Pull an image from a registry that not every machine reaches, or skip the test."""
    image = YAML(typ="safe").load(PROJECT / FILE)["services"][service]["image"]
    for looked in (("image", "inspect"), ("pull", "--quiet")):
        command = ("docker", *looked, image)
        if subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS).returncode == 0:
            return
    pytest.skip(f"the image {image} is not here, and cannot be pulled from here")


def start_monitoring(stack: Stack, *services: str) -> None:
    for service in services:
        image_or_skip(service)
    stack.compose.run("--profile", "monitoring", "up", "--detach", "--wait", *services)


def ask(url: str, **params: str) -> Any:
    answer = requests.get(url, params=params, timeout=OPERATION_SECONDS)
    assert answer.ok, f"{url}: {answer.text[:500]}"
    return answer.json()


def test_prometheus_has_both_sidecars_the_audits_and_every_rule(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCUMENTATION_URL", "https://docs.example.net/sidecar/")
    start_monitoring(stack, "prometheus", "pushgateway")
    pushed = "PUSHGATEWAY_URL=http://127.0.0.1:9091/metrics/job/pulsar-sidecar-audit"
    stack.compose.run("run", "--rm", "--no-TTY", "--env", pushed, "audit", exit_codes=(0, FINDINGS))

    def values(query: str) -> dict[str, str]:
        found = ask(f"{PROMETHEUS}/api/v1/query", query=query)["data"]["result"]
        return {each["metric"].get("instance", ""): each["value"][1] for each in found}

    up = {address.removeprefix("http://"): "1" for address in SIDECARS.values()}
    until(lambda: values('up{job="pulsar-sidecar"}') == up, "Prometheus has scraped both sidecars")
    until(lambda: values("pulsar_sidecar_audit_timestamp_seconds"), "Prometheus has the audit")
    groups = ask(f"{PROMETHEUS}/api/v1/rules")["data"]["groups"]
    files = {Path(group["file"]).name for group in groups}
    assert files == {path.name for path in (PROJECT / "deploy" / "prometheus").glob("*.rules.yml")}
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert all(link.startswith("https://docs.example.net/sidecar/runbooks/") for link in links)


def test_grafana_has_prometheus_and_every_dashboard(stack: Stack) -> None:
    start_monitoring(stack, "prometheus", "grafana")
    assert ask(f"{GRAFANA}/api/datasources/uid/prometheus/health")["status"] == "OK"
    titles = {each["title"] for each in ask(f"{GRAFANA}/api/search", type="dash-db")}
    files = (PROJECT / "deploy" / "grafana" / "dashboards").glob("*.json")
    assert titles == {json.loads(file.read_text())["title"] for file in files}


@pytest.mark.parametrize(("service", "engine"), [("audit", "embedded"), ("audit-on-spark", "spark")])
def test_an_audit_looks_at_every_ledger_and_plans_nothing_at_its_first_look(
    stack: Stack, service: str, engine: str
) -> None:
    stack.compose.run("run", "--build", "--rm", "--no-TTY", service, exit_codes=(0, FINDINGS))
    shown = ("--entrypoint", "sh", service, "-c", "cat $(ls -d /audits/audits/* | tail -1)/summary.json")
    summary = json.loads(stack.compose.run("run", "--rm", "--no-TTY", *shown))
    assert summary["engine"] == engine
    assert summary["existing"]["ledgers"] > 0
    assert summary["plan"]["rows"] == 0
