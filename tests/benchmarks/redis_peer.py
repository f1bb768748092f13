"""Users' usual alternative beside Pulsar: a Redis sorted set of waiting messages, cancelled by removing members.

The server is Debian's ``redis-server``, on a free port of the loopback address, with its log written for every command
(``appendfsync always``), which is the durability that the other contenders have.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pulsar_sidecar.local_cluster.processes import LOOPBACK, free_ports

_PIPELINE: Final = 1000
_START_SECONDS: Final = 10.0


class RedisPeer:
    """A connection to one server."""

    def __init__(self, port: int, pid: int) -> None:
        self.pid = pid
        self._connection = socket.create_connection((LOOPBACK, port), 5)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._connection.makefile("rb")

    def close(self) -> None:
        self._answers.close()
        self._connection.close()

    def fill(self, key: str, members: Sequence[str]) -> None:
        """Put members into a sorted set, all with a due time."""
        self._pipelined([["ZADD", key, str(index), member] for index, member in enumerate(members)])

    def remove_all(self, key: str, members: Sequence[str]) -> float:
        """Remove each by a command of its own, a thousand in flight at a time; return the seconds that it took."""
        begin = time.perf_counter()
        removed = self._pipelined([["ZREM", key, member] for member in members])
        seconds = time.perf_counter() - begin
        assert removed == len(members), f"{removed} of {len(members)} members were there"
        return seconds

    def remove_one_by_one(self, key: str, members: Sequence[str]) -> list[float]:
        """The latency of each in seconds."""
        latencies = []
        for member in members:
            begin = time.perf_counter()
            assert self._pipelined([["ZREM", key, member]]) == 1
            latencies.append(time.perf_counter() - begin)
        return latencies

    def _pipelined(self, commands: Sequence[Sequence[str]]) -> int:
        total = 0
        for begin in range(0, len(commands), _PIPELINE):
            part = commands[begin : begin + _PIPELINE]
            self._connection.sendall(b"".join(map(_encoded, part)))
            for _ in part:
                answer = self._answers.readline()
                assert answer.startswith(b":"), answer
                total += int(answer[1:])
        return total


@contextmanager
def redis_peer(scratch: Path) -> Iterator[RedisPeer | None]:
    """A server of its own; None where Debian's package is not installed."""
    program = shutil.which("redis-server")
    if program is None:
        yield None
        return
    (port,) = free_ports(1)
    options = {"port": str(port), "bind": LOOPBACK, "dir": str(scratch), "save": "", "appendonly": "yes"}
    options |= {"appendfsync": "always", "daemonize": "no"}
    command = [program, *(text for name, value in options.items() for text in (f"--{name}", value))]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=scratch) as process:
        try:
            peer = _connected(port, process.pid)
            yield peer
            peer.close()
        finally:
            process.terminate()


def _connected(port: int, pid: int) -> RedisPeer:
    give_up = time.monotonic() + _START_SECONDS
    while True:
        try:
            return RedisPeer(port, pid)
        except OSError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


def _encoded(words: Sequence[str]) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        data = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
