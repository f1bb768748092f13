"""Starting on real, small processes: a passing refusal is repeated, any other failure stops the start of all."""

import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.cluster import LocalCluster, four_letter_word, is_ready
from pulsar_sidecar.local_cluster.processes import LOOPBACK, end, free_ports, is_free, is_running
from pulsar_sidecar.local_cluster.spec import MemberFailedError, Role
from pulsar_sidecar.local_cluster.state import ClusterState, Member, write_state
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.patience import until

LISTEN = """
import socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), reuse_port=False)
while True:
    connection, _ = listener.accept()
    connection.recv(100)
    connection.sendall(b"Mode: standalone")
    connection.close()
"""


class Setup(LocalCluster):
    """A cluster's directory, and everything that was started in it."""

    def __init__(self, directory: Path) -> None:
        self.progress: list[str] = []
        self.started: list[Member] = []
        self.directory = directory
        super().__init__(directory, progress=self.progress.append)
        write_state(directory, ClusterState("4.0.8", "local", ()))

    def start(self, *members: Member, timeout_seconds: float = 20.0) -> None:
        self.start_members(members, timeout_seconds)

    def _record(self, member: Member) -> None:
        self.started.append(member)
        super()._record(member)

    def member(self, name: str, port: int, program: str = LISTEN) -> Member:
        (self.directory / name).mkdir(exist_ok=True)
        argv = (sys.executable, "-c", program, str(port))
        return Member(name, Role.ZOOKEEPER, {"client": port}, argv)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    end([member.process for member in setup.started if member.process], SystemClock())


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port on which a stranger listens and responds to the probe as if ready."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        thread = threading.Thread(target=_answer, args=[listener], daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _answer(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.recv(100)
            connection.sendall(b"Mode: somebody else")


def test_members_that_listen_become_ready(setup: Setup) -> None:
    names = ("zookeeper", "zookeeper-2")
    planned = [setup.member(name, port) for name, port in zip(names, free_ports(2), strict=True)]
    setup.start(*planned)
    assert sorted(member.name for member in setup.started) == sorted(names)
    assert all(member.process is not None and is_running(member.process) for member in setup.started)
    assert sorted(setup.progress) == ["zookeeper is ready", "zookeeper-2 is ready"]


def test_a_member_waits_for_its_port_and_is_not_taken_for_who_answers_there(setup: Setup) -> None:
    (port,) = free_ports(1)
    squatter = setup.member("squatter", port, LISTEN.replace("while True:", "for _ in range(2):"))
    setup.start(squatter)
    member = setup.member("zookeeper", port)
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(setup.start, member)
        until(lambda: "port taken" in "".join(setup.progress), "the member waits for its port")
        assert is_ready(member), "the probe alone is fooled"
        start.result()
    assert setup.progress[-1] == "zookeeper is ready"
    assert four_letter_word(port, "srvr") == "Mode: standalone"


def test_a_port_that_stays_taken_ends_the_start(setup: Setup, taken_port: int) -> None:
    with pytest.raises(MemberFailedError, match=f"port taken.*{taken_port}"):
        setup.start(setup.member("zookeeper", taken_port), timeout_seconds=0.5)
    assert setup.started == []


REFUSED_ONCE = """
import pathlib, sys, time
if not pathlib.Path("refused").exists():
    pathlib.Path("refused").touch()
    print("%s", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("BindException: Address already in use", "port taken"),
        ("LayoutManager$LockBusyException", "previous process's session"),
        ("KeeperErrorCode = NodeExists for /ledgers/underreplication/LAYOUT", "another bookie"),
        ("KeeperErrorCode = BadVersion for /ledgers/underreplication/LAYOUT", "another bookie"),
        ("LowOverheadTimeoutException: Failed to load topic within timeout", "did not load"),
    ],
)
def test_a_restart_that_was_refused_for_a_moment_is_repeated(setup: Setup, message: str, shown: str) -> None:
    (port,) = free_ports(1)
    setup.start(setup.member("zookeeper", port, REFUSED_ONCE % message + LISTEN))
    refused, served = (member.process for member in setup.started)
    assert refused is not None
    assert served is not None
    assert (is_running(refused), is_running(served)) == (False, True)
    assert shown in setup.progress[0]


def test_an_earlier_lost_race_in_the_log_is_not_taken_for_a_new_one(setup: Setup) -> None:
    (port,) = free_ports(1)
    member = setup.member("zookeeper", port)
    (setup.directory / "zookeeper" / "zookeeper.log").write_text("java.net.BindException: Address already in use\n")
    setup.start(member)
    assert len(setup.started) == 1


def test_a_member_that_ends_shows_its_exit_code_and_the_end_of_its_log(setup: Setup) -> None:
    broken = setup.member("zookeeper", 1, "import sys; print('no such setting'); sys.exit(7)")
    with pytest.raises(MemberFailedError, match=r"zookeeper ended with exit code 7[\s\S]*no such setting"):
        setup.start(broken)


ENDED_ONCE = """
import pathlib, sys
if not pathlib.Path("ended").exists():
    pathlib.Path("ended").touch()
    sys.exit(7)
"""


def killed_member(setup: Setup, next_program: str) -> Member:
    """One that was ready and was killed; its next process runs this program."""
    (port,) = free_ports(1)
    setup.start(setup.member("zookeeper", port))
    process = setup.started[-1].process
    assert process is not None
    end([process], SystemClock())
    return replace(setup.member("zookeeper", port, next_program), process=process)


def test_a_restarted_member_that_ends_is_started_again_while_its_former_session_may_last(setup: Setup) -> None:
    setup.start(killed_member(setup, ENDED_ONCE + LISTEN))
    assert "exit code 7" in setup.progress[1]
    assert setup.progress[2] == "zookeeper is ready"


def test_a_restarted_member_that_ends_again_and_again_is_given_up(setup: Setup) -> None:
    broken = killed_member(setup, "raise SystemExit(7)")
    # On a slow machine the time is over while one is starting.
    with pytest.raises(MemberFailedError, match=r"zookeeper (ended with exit code 7|was not ready in time)"):
        setup.start(broken, timeout_seconds=2.5)
    assert len(setup.started) > 1


def test_the_first_errors_of_a_member_that_writes_much_when_it_ends_are_shown(setup: Setup) -> None:
    chatty = "print('09:00 [main] ERROR the cause'); print(*['09:01 closed'] * 100, sep='\\n'); raise SystemExit(7)"
    with pytest.raises(MemberFailedError, match=r"first errors:\n09:00 \[main\] ERROR the cause\nthe end of its log"):
        setup.start(setup.member("zookeeper", 1, chatty))


ANSWERED_FOR = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
read, write = os.pipe()
if os.fork():
    os.read(read, 1)
    sys.exit(7)
connection, _ = listener.accept()
connection.recv(100)
member = os.getppid()
os.write(write, b"x")
while os.getppid() == member:
    time.sleep(0.01)
connection.sendall(b"Mode: somebody else")
connection.close()
"""


def test_a_member_that_ended_is_not_ready_whichever_process_answers_for_it(setup: Setup) -> None:
    (port,) = free_ports(1)
    with pytest.raises(MemberFailedError, match="zookeeper ended with exit code 7"):
        setup.start(setup.member("zookeeper", port, ANSWERED_FOR))


def test_failed_member_ends_the_wait_for_others(setup: Setup) -> None:
    (port,) = free_ports(1)
    silent = setup.member("zookeeper", port, "import time; time.sleep(60)")
    broken = setup.member("zookeeper-2", port, "raise SystemExit(3)")
    with pytest.raises(MemberFailedError, match="zookeeper-2 ended with exit code 3"):
        setup.start(silent, broken, timeout_seconds=50.0)


def test_a_member_that_never_answers_is_given_up(setup: Setup) -> None:
    (port,) = free_ports(1)
    silent = setup.member("zookeeper", port, "import time; print('thinking', flush=True); time.sleep(60)")
    with pytest.raises(MemberFailedError, match=r"not ready in time[\s\S]*thinking"):
        setup.start(silent, timeout_seconds=1.0)


def test_free_ports_are_free_and_different(taken_port: int) -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(is_free(port) for port in ports)
    assert not is_free(taken_port)


def test_concurrent_callers_get_distinct_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULSAR_SIDECAR_CACHE", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        handed_out = [port for ports in pool.map(free_ports, [5] * 8) for port in ports]
    assert len(set(handed_out)) == 40
