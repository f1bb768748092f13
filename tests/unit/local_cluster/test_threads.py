"""A report of busy threads leads with deadlocks and leaves out what only waits for work."""

import subprocess

from tests.cluster.threads import busy_threads, inside_pulsar

BUSY = '"BookKeeperClientWorker-0" #1\n\tat org.apache.bookkeeper.client.LedgerHandle.read(LedgerHandle.java:1)'
IDLE = '"pulsar-io-1" #2\n\tat io.netty.channel.epoll.Native.epollWait(Native.java:1)'
DEADLOCK = 'Found one Java-level deadlock:\n=====\n"a": waits for "b"\n\n"b": waits for "a"'


def test_threads_that_wait_for_work_are_left_out() -> None:
    assert inside_pulsar(f"{IDLE}\n\n{BUSY}\n\n") == BUSY
    assert inside_pulsar(IDLE) == ""


def test_a_deadlock_comes_first_and_whole() -> None:
    assert inside_pulsar(f"{BUSY}\n\n{IDLE}\n\n{DEADLOCK}") == f"{DEADLOCK}\n{BUSY}"


def test_a_process_that_has_ended_has_no_threads() -> None:
    # Never another living process: asking for a dump sends it SIGQUIT.
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert busy_threads(ended.pid) == ""
