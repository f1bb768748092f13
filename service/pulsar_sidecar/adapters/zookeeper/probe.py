"""Connection of the latency probe to ZooKeeper.

It carries one ``sync`` at a time: it changes nothing, needs no permission, and passes the same
queues as other clients' requests, through the leader.
"""

import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from kazoo.protocol.serialization import SASL, Auth, CloseInstance, Connect, Sync
from puresasl import SASLError, SASLProtocolException
from puresasl.client import SASLClient

from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreCredential
from pulsar_sidecar.model.clocks import Clock

_LOG = logging.getLogger(__name__)
_SESSION_TIMEOUT_MS: Final = 10_000
_ANSWER_SECONDS: Final = 20.0
_RECEIVE_TIMEOUT_SECONDS: Final = 0.05
_AUTH_XID: Final = -4
_CLOSE_XID: Final = 0
_MOST_CHALLENGES: Final = 5
_MAX_ANSWER_BYTES: Final = 64 * 1024

_LENGTH = struct.Struct("!i")
_HEADER = struct.Struct("!ii")
_REPLY = struct.Struct("!iqi")


class ZooKeeperProbe:
    """`latency_probe.ProbeConnection` by a ZooKeeper session."""

    def __init__(self, server: str, options: SessionOptions, clock: Clock) -> None:
        host, _, port = server.rpartition(":")
        self._clock = clock
        self._buffer = bytearray()
        self._xid = 0
        self._socket = socket.create_connection((host.strip("[]"), int(port)), _ANSWER_SECONDS)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if options.tls is not None:
                self._socket = options.tls.context().wrap_socket(self._socket, server_hostname=host.strip("[]"))
            self._greet(options.credential)
        except BaseException:
            self._socket.close()
            raise

    def round_trip(self, overdue: Callable[[float], None]) -> float:
        self._xid = self._xid % 0x7FFFFFFF + 1
        began = self._clock.monotonic_seconds()
        answer = self._ask(_HEADER.pack(self._xid, Sync.type) + Sync("/").serialize(), overdue)
        seconds = self._clock.monotonic_seconds() - began
        xid, code = _reply(answer)
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
            try:
                self._log_in(*credential.sasl)
            except (SASLError, SASLProtocolException) as error:
                raise ConnectionRefusedError(f"the login failed: {error}") from error
        else:
            login = Auth(0, credential.scheme, credential.secret).serialize()
            _, code = _reply(self._ask(_HEADER.pack(_AUTH_XID, Auth.type) + login))
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
            _, code = _reply(answer)
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


def _reply(answer: bytes) -> tuple[int, int]:
    """Return the request's number and the code of its answer."""
    try:
        xid, _, code = _REPLY.unpack_from(answer)
    except struct.error as error:
        raise ConnectionError("this is not a ZooKeeper server") from error
    return xid, code
