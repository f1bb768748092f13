"""The state file returns what was written, under concurrent changes too, and a reused process id is left alone."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed
from pulsar_sidecar.local_cluster.cluster import LocalCluster
from pulsar_sidecar.local_cluster.processes import ProcessIdentity, end, is_running, send_signal, spawn
from pulsar_sidecar.local_cluster.spec import ClusterExistsError, ClusterNotFoundError, ClusterSpec, Role
from pulsar_sidecar.local_cluster.state import (
    ClusterState,
    Member,
    addresses_of,
    change_state,
    has_state,
    read_state,
    write_state,
)
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, UndecodableError

from tests.cluster.choosing import parse_addresses

MEMBERS = (
    Member("zookeeper", Role.ZOOKEEPER, {"client": 2181}, ("java", "zk"), ProcessIdentity(10, "7")),
    Member("bookie-1", Role.BOOKIE, {"bookie": 3181, "http": 8000}, ("java", "bk"), ProcessIdentity(11, "8")),
    Member("broker-1", Role.BROKER, {"broker": 6650, "http": 8080}, ("java", "b1"), ProcessIdentity(12, "9")),
    Member("broker-2", Role.BROKER, {"broker": 6651, "http": 8081}, ("java", "b2")),
)
SLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessIdentity]:
    process = spawn(SLEEP, {}, tmp_path, tmp_path / "sleeper.log")
    yield process
    end([process], SystemClock())


STATE = ClusterState("4.0.8", "local", MEMBERS)


def test_state_round_trip(tmp_path: Path) -> None:
    state = changed(STATE, metadata_setup=ProcessIdentity(13, "5"))
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert [process.pid for process in state.processes()] == [10, 11, 12, 13]
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    write_state(tmp_path, changed(STATE, members=()))
    started = [replace(MEMBERS[1], name=f"bookie-{number}") for number in range(1, 21)]

    def record(member: Member) -> None:
        change_state(tmp_path, lambda state: state.with_member(member))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(record, reversed(started)))
    assert list(read_state(tmp_path).members) == started


def test_members_stand_in_the_order_of_roles_and_numbers(tmp_path: Path) -> None:
    state = changed(STATE, members=())
    for name in ("broker-10", "broker-2", "bookie-1"):
        state = state.with_member(replace(MEMBERS[2], name=name, role=Role(name.partition("-")[0])))
    assert [member.name for member in state.members] == ["bookie-1", "broker-2", "broker-10"]


def test_missing_file_means_no_cluster(tmp_path: Path) -> None:
    assert not has_state(tmp_path)
    with pytest.raises(ClusterNotFoundError, match="up"):
        read_state(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "version": "4"}'])
def test_foreign_state_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(UndecodableError):
        read_state(tmp_path)
    with pytest.raises(UndecodableError):
        LocalCluster(tmp_path).down()
    assert has_state(tmp_path)


def test_addresses_are_in_the_brokers_order_and_survive_the_json_line(tmp_path: Path) -> None:
    addresses = addresses_of(tmp_path, STATE)
    assert addresses.web_service_urls == ("http://127.0.0.1:8080", "http://127.0.0.1:8081")
    assert addresses.broker_service_url == "pulsar://127.0.0.1:6650,127.0.0.1:6651"
    assert addresses.metadata_store_url == "zk:127.0.0.1:2181"
    assert addresses.bookie_http_urls == ("http://127.0.0.1:8000",)
    assert addresses.members == {"zookeeper": 10, "bookie-1": 11, "broker-1": 12}
    assert "\n" not in addresses.json_line()
    assert parse_addresses(addresses.json_line()) == addresses


@pytest.mark.parametrize("text", ["", "{}", "[1]", '"x"', '{"webServiceUrls": []}'])
def test_a_line_without_addresses_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_addresses(text)


def test_a_process_that_got_the_id_later_is_never_signalled(sleeper: ProcessIdentity) -> None:
    earlier = replace(sleeper, started="an earlier process")
    assert not is_running(earlier)
    assert not send_signal(earlier, signal.SIGKILL)
    assert is_running(sleeper)
    assert send_signal(sleeper, signal.SIGKILL)


def test_down_ends_its_own_processes_only(tmp_path: Path, sleeper: ProcessIdentity) -> None:
    directory = tmp_path / "cluster"
    directory.mkdir()
    own = spawn(SLEEP, {}, directory, directory / "own.log")
    reused = replace(sleeper, started="an earlier process")
    members = (replace(MEMBERS[0], process=own), replace(MEMBERS[1], process=reused))
    write_state(directory, changed(STATE, members=members))
    LocalCluster(directory).down()
    assert not is_running(own)
    assert is_running(sleeper)
    assert not directory.exists()


def test_down_touches_no_directory_that_holds_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    LocalCluster(tmp_path).down()
    assert (tmp_path / "precious").exists()


def test_members_are_found_by_name(tmp_path: Path) -> None:
    assert STATE.member("broker-2").ports["http"] == 8081
    with pytest.raises(ClusterNotFoundError, match="broker-1"):
        STATE.member("broker-9")


def test_a_process_ends_when_its_parent_does_not_wait_for_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as child:
        child.wait()
        assert not is_running(ProcessIdentity(child.pid, "any"))


@pytest.mark.parametrize("content", ["cluster.json", "somebody's file"])
def test_a_directory_in_use_is_not_claimed(tmp_path: Path, content: str) -> None:
    (tmp_path / content).touch()
    with pytest.raises(ClusterExistsError):
        LocalCluster.up(ClusterSpec(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [content]
