"""A client in a process of its own that sends requests at fixed moments, whether or not earlier ones have responses.

A latency counts from the moment at which the request should have been sent, so a server that stalls is charged with
every request that it kept waiting, and a late client with its own lateness. Beside it stands what was on the wire: from
the moment of sending to the one at which the kernel had the response, without what the client waits for a processor.
Two kinds of requests: HTTP GETs over keep-alive connections, and ZooKeeper reads and writes (four to one) over one
session, as another client of the cluster makes them.
"""

import argparse
import gc
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from pulsar_sidecar.features.ledger_deletion.second_phase.limits import percentile

from tests.cluster.choosing import PROJECT

_LENGTH = struct.Struct("!i")
_HEADER = struct.Struct("!ii")
_REPLY = struct.Struct("!iqi")
_SECONDS = 30.0

# asm-generic/socket.h; Python has no name for it. Stamps are struct timespec of CLOCK_REALTIME.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")

_STAMP_SPACE_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
"""Space for one stamp in the ancillary data of ``recvmsg``."""


class Latencies:
    """Latencies of one period as the client saw them, in milliseconds."""

    def __init__(self, milliseconds: Sequence[float], on_the_wire: Sequence[float] = ()) -> None:
        self.milliseconds = milliseconds
        self.on_the_wire = on_the_wire

    def p(self, percent: float) -> float:
        """Return a percentile."""
        return percentile(self.milliseconds, percent / 100)

    def wire(self) -> "Latencies":
        """Return the latencies without the client's own waiting."""
        return Latencies(self.on_the_wire)

    def cells(self) -> list[str]:
        """Return p50, p99 and the maximum for a table."""
        return [f"{self.p(50):.2f} ms", f"{self.p(99):.2f} ms", f"{self.p(100):.1f} ms"]


def joined(latencies: Sequence[Latencies]) -> Latencies:
    """Combine the latencies of several periods."""
    return Latencies(
        [each for one in latencies for each in one.milliseconds],
        [each for one in latencies for each in one.on_the_wire],
    )


class OpenLoopClient:
    """The process, as its parent sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def take(self) -> Latencies:
        """Return all responses since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Latencies(*json.loads(self._process.stdout.readline()))

    def over(self, seconds: float) -> Latencies:
        """The next seconds, as many as given."""
        self.take()
        time.sleep(seconds)
        return self.take()


@contextmanager
def open_loop_client(kind: str, host: str, port: int, rate: float, path: str = "/") -> Iterator[OpenLoopClient]:
    """Run a client; ``kind`` is ``http`` or ``zookeeper``."""
    command = [sys.executable, "-m", __name__, kind, host, str(port), str(rate), path]
    process = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield OpenLoopClient(process)
    finally:
        process.stdin.close()
        process.wait(_SECONDS)
        process.stdout.close()


# --- the process -----------------------------------------------------------------------------------------------------


class Lane(Protocol):
    """A connection whose responses keep the order of the requests."""

    socket: socket.socket

    def request(self, number: int) -> bytes: ...

    def answers(self, data: bytes) -> int:
        """Return the number of responses that have become complete."""
        ...


class HttpLane:
    """HTTP/1.1 with keep-alive."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.socket = socket.create_connection((host, port), _SECONDS)
        self._request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode()
        self._buffer = b""

    def request(self, number: int) -> bytes:
        return self._request

    def answers(self, data: bytes) -> int:
        self._buffer += data
        found = 0
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            if not head.startswith(b"http/1.1 200 "):
                sys.exit(f"not the answer that was to be measured: {self._buffer[:300]!r}")
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self._buffer) < end + 4 + length:
                break
            self._buffer = self._buffer[end + 4 + length :]
            found += 1
        return found


class ZooKeeperLane:
    """A session with a node of its own: every fifth request writes it, the others read it."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.socket = socket.create_connection((host, port), _SECONDS)
        self._path = _text(f"{path}pulsar-sidecar-benchmark-neighbour-{time.time_ns()}")
        self._buffer = b""
        self._send(struct.pack("!iqiqi", 0, 0, 30_000, 0, 16) + bytes(17))
        self._await_answer()
        anyone = struct.pack("!ii", 1, 31) + _text("world") + _text("anyone")
        ephemeral = 1
        self._send(_HEADER.pack(1, 1) + self._path + _text("x" * 200) + anyone + _LENGTH.pack(ephemeral))
        _, _, error = _REPLY.unpack_from(self._await_answer())
        if error:
            sys.exit(f"the client's node could not be created: {error}")

    def request(self, number: int) -> bytes:
        if number % 5 == 0:
            return _frame(_HEADER.pack(number + 2, 5) + self._path + _text("y" * 200) + _LENGTH.pack(-1))
        return _frame(_HEADER.pack(number + 2, 4) + self._path + b"\x00")

    def answers(self, data: bytes) -> int:
        self._buffer += data
        found = 0
        while self._is_complete():
            (length,) = _LENGTH.unpack_from(self._buffer)
            _, _, error = _REPLY.unpack_from(self._buffer, _LENGTH.size)
            if error:
                sys.exit(f"ZooKeeper answered with error {error}")
            self._buffer = self._buffer[_LENGTH.size + length :]
            found += 1
        return found

    def _is_complete(self) -> bool:
        head = len(self._buffer) >= _LENGTH.size
        return head and len(self._buffer) >= _LENGTH.size + int(_LENGTH.unpack_from(self._buffer)[0])

    def _send(self, body: bytes) -> None:
        self.socket.sendall(_frame(body))

    def _await_answer(self) -> bytes:
        while not self._is_complete():
            self._buffer += self.socket.recv(65_536)
        (length,) = _LENGTH.unpack_from(self._buffer)
        body = self._buffer[_LENGTH.size : _LENGTH.size + length]
        self._buffer = self._buffer[_LENGTH.size + length :]
        return body


def _frame(body: bytes) -> bytes:
    return _LENGTH.pack(len(body)) + body


def _text(text: str) -> bytes:
    return _LENGTH.pack(len(text)) + text.encode()


def _stamp_arrivals(receiving: socket.socket) -> None:
    """Have the kernel stamp arriving bytes from now on; only Linux does."""
    if sys.platform == "linux":
        receiving.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def _stamp_ns(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """Return the stamp in the ancillary data of ``recvmsg``, nanoseconds since the epoch; None where there is none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) >= _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            return int(seconds * 1_000_000_000 + nanoseconds)
    return None


def _run(lanes: Sequence[Lane], rate: float) -> None:
    """Send until standard input ends; each line there requests the latencies since the last one."""
    by_descriptor = {lane.socket.fileno(): lane for lane in lanes}
    waiting: dict[int, deque[tuple[float, int]]] = {descriptor: deque() for descriptor in by_descriptor}
    for lane in lanes:
        lane.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _stamp_arrivals(lane.socket)
    taken: tuple[list[float], list[float]] = ([], [])
    number, begin = 0, time.perf_counter()
    gc.disable()
    while True:
        due = begin + number / rate
        now = time.perf_counter()
        if now >= due:
            # Of those with the fewest the next in turn, as a server closes connections that it takes to be idle.
            turn = number % len(lanes)
            lane = min((*lanes[turn:], *lanes[:turn]), key=lambda lane: len(waiting[lane.socket.fileno()]))
            waiting[lane.socket.fileno()].append((due, time.time_ns()))
            lane.socket.sendall(lane.request(number))
            number += 1
            continue
        # select() waits to the microsecond, poll() to the millisecond: the rest would be spent asking.
        for descriptor in select.select((0, *by_descriptor), (), (), due - now)[0]:
            if descriptor == 0:
                if not sys.stdin.readline():
                    return
                sys.stdout.write(json.dumps(taken) + "\n")
                sys.stdout.flush()
                taken = ([], [])
                continue
            data, stamps, _, _ = by_descriptor[descriptor].socket.recvmsg(65_536, _STAMP_SPACE_BYTES)
            if not data:
                sys.exit("the server has closed the connection")
            arrived = time.perf_counter()
            answered = by_descriptor[descriptor].answers(data)
            received_ns = _stamp_ns(stamps) or time.time_ns()
            for _ in range(answered):
                due, sent_ns = waiting[descriptor].popleft()
                taken[0].append((arrived - due) * 1000)
                taken[1].append((received_ns - sent_ns) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("http", "zookeeper"))
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("path")
    chosen = parser.parse_args()
    if chosen.kind == "http":
        _run([HttpLane(chosen.host, chosen.port, chosen.path) for _ in range(8)], chosen.rate)
    else:
        _run([ZooKeeperLane(chosen.host, chosen.port, chosen.path)], chosen.rate)


if __name__ == "__main__":
    main()
