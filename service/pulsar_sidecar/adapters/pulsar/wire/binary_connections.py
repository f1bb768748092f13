"""Connections to brokers by Pulsar's binary protocol, for the few commands that the Pulsar client does not offer.

One connection carries one conversation at a time; idle ones are kept per broker for some seconds. Nothing runs in the
background, so nothing here ever reconnects, and no consumer comes back by itself.

Invariants: a failure before anything was sent is a `TemporaryError`; a connection that failed is closed, and with it
everything that was opened over it on the broker; an answer belongs to the request whose id it bears, and a connection
with an unanswered request is never used again.
"""

import itertools
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from pulsar_sidecar.adapters.pulsar.credentials import AuthPlugin, ClientCredentials, TlsOptions, tls_context
from pulsar_sidecar.adapters.pulsar.wire.binary_frames import FrameReader, encode
from pulsar_sidecar.adapters.pulsar.wire.idle_pool import IdlePool
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    NotFoundError,
    PermanentError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.wire import PulsarApi_pb2 as api

PROTOCOL_VERSION: Final = 19
CLIENT_VERSION: Final = "pulsar-sidecar"
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
IDLE_SECONDS: Final = 15.0
"""Shorter than the interval of a broker's pings (``keepAliveIntervalSeconds``, 30), which an idle socket would miss."""
MOST_IDLE: Final = 8

SERVER_ERRORS: Final[dict[int, type[SidecarError]]] = {
    api.AuthenticationError: NotAuthenticatedError,
    api.AuthorizationError: NotAuthorizedError,
    api.ConsumerBusy: ConflictError,
    api.ConsumerAssignError: ConflictError,
    api.TopicNotFound: NotFoundError,
    api.SubscriptionNotFound: NotFoundError,
    api.InvalidTopicName: InvalidInputError,
    api.NotAllowedError: PermanentError,
    api.UnsupportedVersionError: PermanentError,
    api.TopicTerminatedError: PermanentError,
    api.IncompatibleSchema: PermanentError,
}
"""What brokers' errors mean; every other one may be over soon."""

_NO_REQUEST: Final = 2**64 - 1
"""-1 as an unsigned number: the id in a broker's errors that concern the whole connection."""

_REQUEST_IDS: Final[Mapping[int, Callable[[api.BaseCommand], int]]] = {
    api.BaseCommand.ERROR: lambda answer: answer.error.request_id,
    api.BaseCommand.SUCCESS: lambda answer: answer.success.request_id,
    api.BaseCommand.LOOKUP_RESPONSE: lambda answer: answer.lookupTopicResponse.request_id,
    api.BaseCommand.ACK_RESPONSE: lambda answer: answer.ackResponse.request_id,
    api.BaseCommand.PRODUCER_SUCCESS: lambda answer: answer.producer_success.request_id,
    api.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: lambda answer: answer.getLastMessageIdResponse.request_id,
}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker is reached: ``url``, or through the proxy at ``via``."""

    url: str
    via: str | None = None


@dataclass(frozen=True, slots=True)
class BinaryTimeouts:
    """Seconds to connect, and to wait for the next piece of an answer."""

    connect_seconds: float = 5.0
    read_seconds: float = 15.0


class BinaryConnection:
    """One authenticated connection; used by one thread at a time."""

    def __init__(self, connection: socket.socket, credentials: ClientCredentials, proxied_to: str | None) -> None:
        self._connection = connection
        self._reader = FrameReader(connection)
        self._credentials = credentials
        self._ids = itertools.count(1)
        self._unanswered: set[int] = set()
        self._is_closed = False
        self.frames_received = 0
        self._handshake(proxied_to)

    @property
    def is_reusable(self) -> bool:
        """Whether it can be used again: it is open, and every request has been answered."""
        return not self._is_closed and not self._unanswered

    def next_id(self) -> int:
        """A number that no other request, consumer or producer of this connection has."""
        return next(self._ids)

    def next_request_id(self) -> int:
        """The id of a request that the caller sends now, and whose answer it awaits."""
        request_id = self.next_id()
        self._unanswered.add(request_id)
        return request_id

    def send(self, *commands: api.BaseCommand) -> None:
        """Send commands, in order."""
        self._connection.sendall(b"".join(encode(command) for command in commands))

    def send_frame(self, frame: bytes) -> None:
        """Send a message's frame."""
        self._connection.sendall(frame)

    def receive(self) -> api.BaseCommand:
        """The next command that is an answer or an event; pings and challenges are answered on the way."""
        return self.receive_with_message()[0]

    def wait_at_most(self, seconds: float) -> None:
        """How long `receive` waits for the next piece from now on, before it raises TimeoutError."""
        self._connection.settimeout(seconds)

    def receive_with_message(self) -> tuple[api.BaseCommand, bytes]:
        """As `receive`, with the message that came with the command."""
        while True:
            command, message = self._reader.next_with_message()
            self.frames_received += 1
            self._unanswered.discard(answered_request(command))
            match command.type if command.HasField("type") else None:
                case api.BaseCommand.PING:
                    self.send(api.BaseCommand(type=api.BaseCommand.PONG, pong=api.CommandPong()))
                case api.BaseCommand.AUTH_CHALLENGE:
                    self._answer_challenge()
                case _:
                    return command, message

    def answer_to(
        self,
        request_id: int,
        wanted: int,
        doing: str,
        between: Callable[[api.BaseCommand, bytes], None] = lambda event, message: None,
    ) -> api.BaseCommand:
        """The broker's answer to this request; ``between`` gets what comes before it, answers to others among it.

        Raises:
            OSError: the connection ended, or the answer takes too long.
            SidecarError: the broker refused, or answered something else than ``wanted``.
        """
        while True:
            answer, message = self.receive_with_message()
            answered = answered_request(answer)
            if answered != request_id and not (answer.type == api.BaseCommand.ERROR and answered == _NO_REQUEST):
                between(answer, message)
            elif answer.type == api.BaseCommand.ERROR:
                raise server_error(doing, answer.error.error, answer.error.message)
            elif answer.type != wanted:
                raise TemporaryError(f"{doing}: the broker gave an answer of another kind; try again")
            else:
                return answer

    def close(self) -> None:
        """Close it; the broker forgets its consumers."""
        self._is_closed = True
        self._connection.close()

    def _handshake(self, proxied_to: str | None) -> None:
        connect = api.CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=_METHOD_NAMES[self._credentials.plugin],
            auth_data=_auth_data(self._credentials),
            feature_flags=api.FeatureFlags(supports_auth_refresh=True),
        )
        if proxied_to:
            connect.proxy_to_broker_url = urlsplit(proxied_to).netloc
        self.send(api.BaseCommand(type=api.BaseCommand.CONNECT, connect=connect))
        answer = self.receive()
        if answer.type == api.BaseCommand.ERROR:
            raise server_error("connecting", answer.error.error, answer.error.message)
        if answer.type != api.BaseCommand.CONNECTED:
            raise TemporaryError("a broker did not complete the handshake; is this Pulsar's binary port?")

    def _answer_challenge(self) -> None:
        response = api.AuthData(
            auth_method_name=_METHOD_NAMES[self._credentials.plugin], auth_data=_auth_data(self._credentials)
        )
        answer = api.CommandAuthResponse(
            client_version=CLIENT_VERSION, response=response, protocol_version=PROTOCOL_VERSION
        )
        self.send(api.BaseCommand(type=api.BaseCommand.AUTH_RESPONSE, authResponse=answer))


class BinaryConnections:
    """A pool of connections by broker; safe for use by several threads."""

    def __init__(
        self, credentials: ClientCredentials, tls: TlsOptions, clock: Clock, timeouts: BinaryTimeouts | None = None
    ) -> None:
        self._credentials = credentials
        self._tls = tls
        self._clock = clock
        self._timeouts = timeouts or BinaryTimeouts()
        self._idle: IdlePool[BrokerAddress, BinaryConnection] = IdlePool(clock, seconds=IDLE_SECONDS, most=MOST_IDLE)

    @contextmanager
    def using(self, place: BrokerAddress) -> Iterator[BinaryConnection]:
        """A connection for one conversation; kept afterwards unless the conversation failed or left a request open.

        Raises:
            TemporaryError: the broker cannot be reached.
        """
        connection = self._idle.take(place) or self.open(place)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.is_reusable:
            self._idle.keep(place, connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close what is idle; idempotent."""
        self._idle.close()

    def open(self, place: BrokerAddress) -> BinaryConnection:
        """A new connection, which the caller closes.

        Raises:
            TemporaryError: the broker cannot be reached.
        """
        if self._idle.closed:
            raise TemporaryError("connections to brokers are closed; the process is stopping")
        address = place.via or place.url
        try:
            plain = self._open(address)
        except (OSError, ValueError) as error:
            raise UnreachableError(f"the broker at {address} cannot be reached ({error}); try again") from error
        try:
            return BinaryConnection(plain, self._credentials, place.url if place.via else None)
        except OSError as error:
            plain.close()
            raise UnreachableError(f"the broker at {address} broke off the handshake ({error}); try again") from error
        except SidecarError:
            plain.close()
            raise

    def _open(self, url: str) -> socket.socket:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 6650)
        connection = socket.create_connection((host, port), self._timeouts.connect_seconds)
        connection.settimeout(self._timeouts.read_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme != "pulsar+ssl":
            return connection
        return tls_context(self._credentials, self._tls).wrap_socket(connection, server_hostname=host)


def answered_request(command: api.BaseCommand) -> int:
    """The id of the request that this is the answer to; that of no request for an event."""
    find = _REQUEST_IDS.get(command.type)
    return _NO_REQUEST if find is None else find(command)


def server_error(doing: str, code: int, message: str) -> SidecarError:
    """A broker's error as ours."""
    kind = SERVER_ERRORS.get(code, TemporaryError)
    return kind(
        f"{doing}: the broker answered {api.ServerError.Name(api.ServerError.ValueType(code))}: {message[:300]}"
    )


_METHOD_NAMES: Final = {
    AuthPlugin.NONE: "none",
    AuthPlugin.TOKEN: "token",
    AuthPlugin.BASIC: "basic",
    AuthPlugin.TLS: "tls",
}


def _auth_data(credentials: ClientCredentials) -> bytes:
    match credentials.plugin:
        case AuthPlugin.TOKEN:
            return credentials.current_token().encode()
        case AuthPlugin.BASIC:
            return f"{credentials.user}:{credentials.password}".encode()
        case AuthPlugin.NONE | AuthPlugin.TLS:
            return b""
