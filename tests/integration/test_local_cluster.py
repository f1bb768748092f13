"""The local cluster is a real one: it boots, carries a message, survives a kill, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pulsar
import pytest
import requests
from pulsar_sidecar.__main__ import programs
from pulsar_sidecar.cli.commands.local_cluster import app
from pulsar_sidecar.cli.connecting import GlobalOptions
from pulsar_sidecar.cli.output import Format
from pulsar_sidecar.local_cluster.processes import ProcessIdentity, is_running
from pulsar_sidecar.local_cluster.state import read_state
from pulsar_sidecar.model.clocks import SystemClock
from typer.testing import CliRunner

from tests.cluster.choosing import PROJECT, parse_addresses
from tests.cluster.clients import PatientClient
from tests.cluster.running import ClusterUnderTest


@pytest.fixture
def client(cluster: ClusterUnderTest) -> Iterator[pulsar.Client]:
    client = PatientClient(cluster.addresses)
    yield client
    client.close()


def send_and_receive(client: pulsar.Client, topic: str, content: bytes) -> bytes:
    consumer = client.subscribe(topic, "reader", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    producer.send(content)
    message = consumer.receive(timeout_millis=20_000)
    consumer.acknowledge(message)
    producer.close()
    consumer.close()
    return bytes(message.data())


def test_a_message_goes_through(cluster: ClusterUnderTest, client: pulsar.Client) -> None:
    assert send_and_receive(client, "persistent://public/default/boot", b"through") == b"through"


def test_every_address_answers(cluster: ClusterUnderTest) -> None:
    addresses = cluster.addresses
    for url in addresses.web_service_urls:
        assert requests.get(f"{url}/admin/v2/clusters", timeout=10).json() == [addresses.cluster_name]
    for url in addresses.bookie_http_urls:
        assert requests.get(f"{url}/api/v1/bookie/list_bookies?type=rw", timeout=10).ok


def test_a_killed_broker_comes_back_with_its_address_and_its_data(
    cluster: ClusterUnderTest, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/kill"
    producer = client.create_producer(topic)
    producer.send(b"before")
    url = cluster.addresses.web_service_urls[0]
    cluster.kill("broker-1")
    try:
        assert not cluster.is_running("broker-1")
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{url}/admin/v2/brokers/ready", timeout=5)
    finally:
        cluster.restart("broker-1")
    assert cluster.is_running("broker-1")
    assert cluster.addresses.web_service_urls[0] == url
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert reader.read_next(timeout_millis=20_000).data() == b"before"
    reader.close()
    producer.close()


def test_a_frozen_bookie_is_there_and_silent(cluster: ClusterUnderTest) -> None:
    url = cluster.addresses.bookie_http_urls[0] + "/api/v1/bookie/is_ready"
    cluster.stop("bookie-1")
    try:
        assert cluster.is_running("bookie-1")
        with pytest.raises(requests.Timeout):
            requests.get(url, timeout=1)
    finally:
        cluster.cont("bookie-1")
    assert requests.get(url, timeout=20).ok


def test_the_commands_from_up_to_down(tmp_path: Path) -> None:
    run = partial(CliRunner().invoke, app, obj=GlobalOptions(programs(), Format.TABLE, {}))
    place = ["--dir", str(tmp_path / "cluster")]
    answer = run(["up", *place, "--brokers", "1", "--bookies", "1", "--output-format", "json"])
    try:
        assert answer.exit_code == 0, answer.stderr
        assert "broker-1 is ready" in answer.stderr
        (line,) = answer.stdout.splitlines()
        document = json.loads(line)
        assert list(document["members"]) == ["zookeeper", "bookie-1", "broker-1"]
        assert parse_addresses(line).json_line() == line
        processes = [m.process for m in read_state(tmp_path / "cluster").members if m.process]
        assert [process.pid for process in processes] == list(document["members"].values())

        again = run(["up", *place])
        assert again.exit_code == 1
        assert "already" in again.stderr
        assert run(["kill", "broker-1", *place]).exit_code == 0
        assert run(["kill", "broker-1", *place]).exit_code == 4
        assert run(["status", *place]).exit_code == 4
        assert run(["restart", "broker-1", *place]).exit_code == 0
        status = run(["status", *place])
        assert (status.exit_code, "DOWN" in status.stdout) == (0, False)
        processes = [m.process for m in read_state(tmp_path / "cluster").members if m.process]
    finally:
        assert run(["down", *place]).exit_code == 0
    assert not any(is_running(process) for process in processes)
    assert list(tmp_path.iterdir()) == []
    assert run(["down", *place]).exit_code == 0


def test_a_start_that_fails_reports_why_and_leaves_nothing(tmp_path: Path) -> None:
    wrong = [
        "--bookies",
        "1",
        "--brokers",
        "1",
        "--broker-conf",
        "authenticationEnabled=true",
        "--broker-conf",
        "authenticationProviders=no.such.Class",
    ]
    answer = CliRunner().invoke(app, ["up", "--dir", str(tmp_path / "cluster"), *wrong])
    assert answer.exit_code == 1
    assert "broker-1" in answer.stderr, answer.output
    assert "no.such.Class" in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_members_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, sys
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.spec import ClusterSpec
directory = pathlib.Path(sys.argv[1])
spec = ClusterSpec(directory, brokers=0, bookies=1, ends_with_starter=True)
print(LocalCluster.up(spec).addresses().json_line(), flush=True)
sys.stdin.read()
"""
    directory = tmp_path / "cluster"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    ) as parent:
        assert parent.stdout is not None
        assert json.loads(parent.stdout.readline())["bookieHttpUrls"]
        processes = [m.process for m in read_state(directory).members if m.process]
        assert len(processes) == 2
        parent.kill()
    for process in processes:
        assert _ends(process)
    assert _becomes_empty(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "cluster"
    # A shell that runs these tests in the background has made them, and so their children, ignore SIGINT.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from pulsar_sidecar.cli.commands.local_cluster import app; app()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "up", "--dir", str(directory)],
        cwd=PROJECT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as up:
        assert up.stderr is not None
        assert any("metadata is set up" in line for line in up.stderr)
        assert _becomes_true(lambda: len(read_state(directory).members) == 5)
        processes = read_state(directory).processes()
        up.send_signal(number)
        assert up.wait(30) != 0
    assert not any(is_running(process) for process in processes)
    assert list(tmp_path.iterdir()) == []


def _ends(process: ProcessIdentity) -> bool:
    return _becomes_true(lambda: not is_running(process))


def _becomes_empty(directory: Path) -> bool:
    return _becomes_true(lambda: list(directory.iterdir()) == [])


def _becomes_true(condition: Callable[[], bool]) -> bool:
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic_seconds() + 20
    while not condition():
        if clock.monotonic_seconds() > deadline:
            return False
        clock.wait_seconds(0.1, never)
    return True
