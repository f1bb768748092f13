"""Probe of ZooKeeper's latency for small requests, as another client would see it.

A connection of its own carries one ``sync`` at a time: it changes nothing, needs no permission, and passes the same
queues as other clients' requests, through the leader.
"""

import logging
import random
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final, Protocol

from kazoo.protocol.serialization import SASL, Auth, CloseInstance, Connect, Sync
from puresasl import SASLError, SASLProtocolException
from puresasl.client import SASLClient

from pulsar_sidecar.adapters.metadata_access import StoreCredential, StoreTls
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError

_LOG = logging.getLogger(__name__)
_SESSION_TIMEOUT_MS: Final = 10_000
_ANSWER_SECONDS: Final = 20.0
_RECEIVE_TIMEOUT_SECONDS: Final = 0.05
_FAREWELL_SECONDS: Final = 1.0
_RECONNECT_SECONDS: Final = 1.0
_AUTH_XID: Final = -4
_CLOSE_XID: Final = 0
_MOST_CHALLENGES: Final = 5
_MAX_ANSWER_BYTES: Final = 64 * 1024

_LENGTH = struct.Struct("!i")
_HEADER = struct.Struct("!ii")
_REPLY = struct.Struct("!iqi")


class LatencyProbe:
    """Latency probe in a thread of its own until it is closed; it reconnects after a lost connection."""

    def __init__(
        self,
        servers: Sequence[str],
        credential: StoreCredential | None,
        clock: Clock,
        listener: AdaptiveLimit,
        *,
        tls: StoreTls | None = None,
        after_seconds: float = 0.0,
    ) -> None:
        """Prepare; see `start`.

        The probe uses one of ``servers`` (``host:port``) at a time, and notifies ``listener`` of every probe, in its
        thread; it makes the first one ``after_seconds``.
        """
        self._after_seconds = after_seconds
        self._servers = servers
        self._credential, self._tls = credential, tls
        self._clock = clock
        self._listener = listener
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latency-probe", daemon=True)

    def start(self) -> None:
        """Start the thread; return at once."""
        self._thread.start()

    def close(self) -> None:
        """End the probe's session; do not wait for a silent server, where the session ends by its timeout."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_SECONDS)

    def _connection(self, server: str) -> "ProbeConnection":
        return _ProbeSession(server, self._credential, self._tls, self._clock)

    def _run(self) -> None:
        is_unreachable = False
        self._clock.wait_seconds(self._after_seconds, self._stop)
        while not self._stop.is_set():
            server = random.choice(self._servers)  # noqa: S311
            try:
                with closing(self._connection(server)) as connection:
                    is_unreachable = False
                    while not self._stop.is_set():
                        self._listener.observe(connection.round_trip(self._listener.overdue))
                        self._clock.wait_seconds(self._listener.probe_interval_seconds(), self._stop)
            except (OSError, struct.error, SASLError, SASLProtocolException, InvalidInputError) as error:
                level = logging.DEBUG if is_unreachable else logging.INFO
                _LOG.log(level, "the latency of the metadata store at %s cannot be measured now: %s", server, error)
                is_unreachable = True
                self._clock.wait_seconds(_RECONNECT_SECONDS, self._stop)


class ProbeConnection(Protocol):
    """Connection of the probe; every method raises `OSError` for a server that cannot be reached, or refuses."""

    def round_trip(self, overdue: Callable[[float], None]) -> float:
        """Return the seconds from sending a probe to its answer; meanwhile call ``overdue`` with the wait so far."""

    def close(self) -> None: ...


class _ProbeSession:
    """`ProbeConnection` by a ZooKeeper session."""

    def __init__(self, server: str, credential: StoreCredential | None, tls: StoreTls | None, clock: Clock) -> None:
        host, _, port = server.rpartition(":")
        self._clock = clock
        self._buffer = bytearray()
        self._xid = 0
        self._socket = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.context().wrap_socket(self._socket, server_hostname=host.strip("[]"))
            self._greet(credential)
        except BaseException:
            self._socket.close()
            raise

    def round_trip(self, overdue: Callable[[float], None]) -> float:
        self._xid = self._xid % 0x7FFFFFFF + 1
        began = self._clock.monotonic_seconds()
        answer = self._ask(_HEADER.pack(self._xid, Sync.type) + Sync("/").serialize(), overdue)
        seconds = self._clock.monotonic_seconds() - began
        xid, _, code = _REPLY.unpack_from(answer)
        if xid != self._xid or code != 0:
            raise ConnectionError(f"answer {code} to request {xid} instead of {self._xid}")
        return seconds

    def close(self) -> None:
        try:
            self._send(_HEADER.pack(_CLOSE_XID, CloseInstance.type))
        except OSError:
            _LOG.debug("the probe's session ends by its timeout")
        self._socket.close()

    def _greet(self, credential: StoreCredential | None) -> None:
        self._ask(bytes(Connect(0, 0, _SESSION_TIMEOUT_MS, 0, bytes(16), False).serialize()))
        if credential is None:
            return
        if credential.sasl is not None:
            self._log_in(*credential.sasl)
        else:
            login = Auth(0, credential.scheme, credential.secret).serialize()
            _, _, code = _REPLY.unpack_from(self._ask(_HEADER.pack(_AUTH_XID, Auth.type) + login))
            if code != 0:
                raise ConnectionRefusedError(f"the credential was refused ({code})")

    def _log_in(self, user: str, password: str) -> None:
        """Log in by SASL as kazoo does: all of ZooKeeper's servers are called zk-sasl-md5."""
        login = SASLClient("zk-sasl-md5", service="zookeeper", mechanism="DIGEST-MD5", username=user, password=password)
        challenge = None
        for xid in range(1, _MOST_CHALLENGES + 1):
            token = login.process(challenge)
            if login.complete and not token:
                break
            answer = self._ask(_HEADER.pack(xid, SASL.type) + SASL(token or b"").serialize())
            _, _, code = _REPLY.unpack_from(answer)
            if code != 0:
                raise ConnectionRefusedError(f"the credential was refused ({code})")
            challenge, _ = SASL.deserialize(answer, _REPLY.size)
        login.dispose()

    def _ask(self, body: bytes, overdue: Callable[[float], None] = lambda waited: None) -> bytes:
        began = self._clock.monotonic_seconds()
        self._send(body)
        while (answer := self._received()) is None:
            waited = self._clock.monotonic_seconds() - began
            if waited > _ANSWER_SECONDS:
                raise TimeoutError(f"no answer within {_ANSWER_SECONDS} seconds")
            overdue(waited)
        return answer

    def _send(self, body: bytes) -> None:
        self._socket.settimeout(_ANSWER_SECONDS)
        self._socket.sendall(_LENGTH.pack(len(body)) + body)
        self._socket.settimeout(_RECEIVE_TIMEOUT_SECONDS)

    def _received(self) -> bytes | None:
        """Wait briefly; return the answer once it is complete."""
        try:
            data = self._socket.recv(_MAX_ANSWER_BYTES)
        except TimeoutError:
            return None
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._buffer += data
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if not 0 <= length <= _MAX_ANSWER_BYTES:
            raise ConnectionError("this is not a ZooKeeper server")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        answer = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return answer
