"""Connections to brokers by Pulsar's binary protocol, for the few commands that the Pulsar client lacks.

One connection carries one conversation at a time; the pool keeps idle ones per broker for some seconds. Nothing runs in
the background, so no connection is ever re-established, and no consumer reconnects.

Invariants: a failure before anything was sent is a `TemporaryError`; a failed connection is closed, and with it
everything that was opened over it on the broker; a response belongs to the request with its id, and a connection with
an unanswered request is never used again.
"""

import itertools
import select
import socket
import ssl
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
from urllib.parse import urlsplit

from google.protobuf.message import Message

from pulsar_sidecar.adapters.pulsar_credentials import tls_context
from pulsar_sidecar.adapters.pulsar_wire.encoding import FrameReader, command_of, encode, encode_message
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.entry_sizes import DEFAULT_MAX_MESSAGE_SIZE
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    NotFoundError,
    PermanentError,
    ProducerBusyError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

PROTOCOL_VERSION: Final = 19
CLIENT_VERSION: Final = "pulsar-sidecar"
_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}
_IDLE_SECONDS: Final = 15.0
"""Lifetime of an idle connection: less than the interval of a broker's pings (``keepAliveIntervalSeconds``, 30)."""
_MOST_IDLE: Final = 8
_MAX_LOOKUPS: Final = 5
_REMEMBERED_TOPICS: Final = 10_000

SERVER_ERRORS: Final[dict[int, type[SidecarError]]] = {
    api.AuthenticationError: NotAuthenticatedError,
    api.AuthorizationError: NotAuthorizedError,
    api.ConsumerBusy: ConflictError,
    api.ConsumerAssignError: ConflictError,
    api.ProducerBusy: ProducerBusyError,
    api.TopicNotFound: NotFoundError,
    api.SubscriptionNotFound: NotFoundError,
    api.InvalidTopicName: InvalidInputError,
    api.NotAllowedError: PermanentError,
    api.UnsupportedVersionError: PermanentError,
    api.TopicTerminatedError: PermanentError,
    api.IncompatibleSchema: PermanentError,
}
"""Our errors for brokers' errors; every other one is temporary."""

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
_Request = (
    api.CommandSubscribe
    | api.CommandAck
    | api.CommandProducer
    | api.CommandCloseProducer
    | api.CommandCloseConsumer
    | api.CommandLookupTopic
    | api.CommandGetLastMessageId
)
_Refusal = api.CommandError | api.CommandSendError | api.CommandAckResponse | api.CommandLookupTopicResponse


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address of a broker: ``url``, or through the proxy at ``via``."""

    url: str
    via: str | None = None


class BinaryConnection:
    """An authenticated connection; used by one thread at a time."""

    def __init__(self, connection: socket.socket, credentials: ClientCredentials, proxied_to: str | None) -> None:
        self._connection = connection
        self._reader = FrameReader(connection)
        self._credentials = credentials
        self._ids = itertools.count(1)
        self._unanswered: set[int] = set()
        self._is_closed = False
        self.frames_received = 0
        self.max_message_bytes = DEFAULT_MAX_MESSAGE_SIZE
        """The broker's ``maxMessageSize``."""
        self._handshake(proxied_to)

    @property
    def is_reusable(self) -> bool:
        """True if the connection can be reused: it is open, and no response is outstanding."""
        return not self._is_closed and not self._unanswered

    def next_id(self) -> int:
        """Return a number that no other request, consumer or producer of this connection has."""
        return next(self._ids)

    def send(self, *commands: Message) -> None:
        self._connection.sendall(b"".join(encode(command_of(command)) for command in commands))

    def send_message(self, command: api.CommandSend, metadata: api.MessageMetadata, payload: bytes) -> None:
        self._connection.sendall(encode_message(command_of(command), metadata, payload))

    def send_request(self, command: _Request) -> int:
        """Send a request without waiting for the response; return its id."""
        command.request_id = self.next_id()
        self._unanswered.add(command.request_id)
        self.send(command)
        return command.request_id

    def request(
        self,
        command: _Request,
        wanted: int,
        doing: str,
        between: Callable[[api.BaseCommand, bytes], None] = lambda event, message: None,
    ) -> api.BaseCommand:
        """Return the broker's response; ``between`` gets earlier frames, including responses to other requests.

        Raises:
            OSError: the connection ended, or the response takes too long.
            SidecarError: the broker refused, or sent a response of another type than ``wanted``.
        """
        request_id = self.send_request(command)
        while True:
            answer, message = self.receive()
            answered = request_id_of(answer)
            if answered != request_id and not (answer.type == api.BaseCommand.ERROR and answered == _NO_REQUEST):
                between(answer, message)
            elif answer.type == api.BaseCommand.ERROR:
                raise server_error(doing, answer.error)
            elif answer.type != wanted:
                raise TemporaryError(f"{doing}: the broker sent an unexpected type of response; try again")
            else:
                return answer

    def leave(self, command: _Request, doing: str) -> None:
        """Close a consumer or a producer; earlier confirmations stay valid even if the broker does not respond."""
        try:
            self.request(command, api.BaseCommand.SUCCESS, doing)
        except (OSError, SidecarError):
            # Closing the connection makes the broker drop it as well.
            self.close()

    def wait_at_most(self, seconds: float) -> None:
        """Set the longest wait of `receive` for the next piece, after which it raises TimeoutError."""
        self._connection.settimeout(seconds)

    def receive(self) -> tuple[api.BaseCommand, bytes]:
        """Return the next response or event, and its message; answer pings and challenges in between."""
        while True:
            found = self.receive_frame()
            if found is not None:
                return found

    def receive_frame(self) -> tuple[api.BaseCommand, bytes] | None:
        """Receive one frame as `receive` does; return None for a ping or a challenge, which is answered."""
        command, message = self._reader.next()
        self.frames_received += 1
        self._unanswered.discard(request_id_of(command))
        match command.type if command.HasField("type") else None:
            case api.BaseCommand.PING:
                self.send(api.CommandPong())
            case api.BaseCommand.AUTH_CHALLENGE:
                self._answer_challenge()
            case _:
                return command, message
        return None

    def has_pending_data(self, wait_seconds: float) -> bool:
        """Return True if a frame is buffered, or bytes arrive within ``wait_seconds``."""
        return self._reader.has_frame or _is_readable(self._connection, wait_seconds)

    def close(self) -> None:
        self._is_closed = True
        self._connection.close()

    def _handshake(self, proxied_to: str | None) -> None:
        connect = api.CommandConnect(
            client_version=CLIENT_VERSION,
            protocol_version=PROTOCOL_VERSION,
            auth_method_name=self._credentials.method,
            auth_data=self._credentials.binary_data(),
            feature_flags=api.FeatureFlags(supports_auth_refresh=True),
        )
        if proxied_to:
            connect.proxy_to_broker_url = urlsplit(proxied_to).netloc
        self.send(connect)
        answer, _ = self.receive()
        if answer.type == api.BaseCommand.ERROR:
            raise server_error("connecting", answer.error)
        if answer.type != api.BaseCommand.CONNECTED:
            raise TemporaryError("a broker did not complete the handshake; is this Pulsar's binary port?")
        self.max_message_bytes = answer.connected.max_message_size or DEFAULT_MAX_MESSAGE_SIZE
        self._reader.expect_messages_of(self.max_message_bytes)

    def _answer_challenge(self) -> None:
        response = api.AuthData(auth_method_name=self._credentials.method, auth_data=self._credentials.binary_data())
        self.send(
            api.CommandAuthResponse(client_version=CLIENT_VERSION, response=response, protocol_version=PROTOCOL_VERSION)
        )


def request_id_of(command: api.BaseCommand) -> int:
    """Return the id of the request to which a command responds; `_NO_REQUEST` for an event."""
    find = _REQUEST_IDS.get(command.type)
    return _NO_REQUEST if find is None else find(command)


def _is_readable(connection: socket.socket, wait_seconds: float) -> bool:
    if isinstance(connection, ssl.SSLSocket) and connection.pending():
        return True
    # Not `select`, which takes no file descriptor beyond 1023.
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    return bool(waiting.poll(wait_seconds * 1000))


def server_error(doing: str, refusal: _Refusal) -> SidecarError:
    kind = SERVER_ERRORS.get(refusal.error, TemporaryError)
    return kind(f"{doing}: the broker answered {api.ServerError.Name(refusal.error)}: {refusal.message[:300]}")


# --- keeping connections -------------------------------------------------------------------------------------------


class _Reusable(Protocol):
    @property
    def is_reusable(self) -> bool: ...
    def close(self) -> None: ...


_Key = TypeVar("_Key", bound=Hashable)
_Kept = TypeVar("_Kept", bound=_Reusable)


class IdlePool(ABC, Generic[_Key, _Kept]):
    """Pool of idle objects by key; safe for use by several threads.

    Nothing runs in the background: an object that was idle for too long is closed when another of its key is requested.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: defaultdict[_Key, list[tuple[float, _Kept]]] = defaultdict(list)
        self._closed = False

    @abstractmethod
    def open(self, key: _Key) -> _Kept:
        """Open a new object, which its user closes."""

    @contextmanager
    def using(self, key: _Key) -> Iterator[_Kept]:
        """Lend an object for one conversation; keep it unless the conversation failed or left a request open."""
        used = self._take(key) or self.open(key)
        try:
            yield used
        except BaseException:
            used.close()
            raise
        self._keep(key, used)

    def close(self) -> None:
        """Close idle objects, and from now on returned ones too; idempotent."""
        with self._lock:
            self._closed = True
            idle = [kept for kind in self._idle.values() for _, kept in kind]
            self._idle.clear()
        for each in idle:
            each.close()

    def _take(self, key: _Key) -> _Kept | None:
        youngest = self._clock.monotonic_seconds() - _IDLE_SECONDS
        with self._lock:
            idle = self._idle[key]
            fresh = [(since, kept) for since, kept in idle if since > youngest]
            stale = [kept for since, kept in idle if since <= youngest]
            taken = fresh.pop()[1] if fresh else None
            self._idle[key] = fresh
        for each in stale:
            each.close()
        return taken

    def _keep(self, key: _Key, used: _Kept) -> None:
        with self._lock:
            idle = self._idle[key]
            if not self._closed and used.is_reusable and len(idle) < _MOST_IDLE:
                idle.append((self._clock.monotonic_seconds(), used))
                return
        used.close()


class BinaryConnections(IdlePool[BrokerAddress, BinaryConnection]):
    """Pool of connections by broker; `using` and `open` raise TemporaryError when the broker cannot be reached."""

    def __init__(
        self,
        credentials: ClientCredentials,
        tls: TlsOptions,
        clock: Clock,
        connect_seconds: float = 5.0,
        read_seconds: float = 15.0,
    ) -> None:
        """Wait at most ``read_seconds`` for the next piece of a response."""
        super().__init__(clock)
        self._credentials = credentials
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._read_seconds = read_seconds

    def open(self, place: BrokerAddress) -> BinaryConnection:
        if self._closed:
            raise TemporaryError("connections to brokers are closed; the process is stopping")
        address = place.via or place.url
        try:
            plain = self._socket(address)
        except (OSError, ValueError) as error:
            raise UnreachableError(f"the broker at {address} cannot be reached ({error}); try again") from error
        try:
            return BinaryConnection(plain, self._credentials, place.url if place.via else None)
        except OSError as error:
            plain.close()
            raise UnreachableError(f"the broker at {address} aborted the handshake ({error}); try again") from error
        except SidecarError:
            plain.close()
            raise

    def _socket(self, url: str) -> socket.socket:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 6650)
        connection = socket.create_connection((host, port), self._connect_seconds)
        connection.settimeout(self._read_seconds)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if parts.scheme != "pulsar+ssl":
            return connection
        return tls_context(self._credentials, self._tls).wrap_socket(connection, server_hostname=host)


class TopicOwners:
    """Connections to the brokers that serve topics, looked up (``CommandLookupTopic``) and cached.

    Safe for use by several threads.
    """

    def __init__(self, service_url: str, connections: BinaryConnections) -> None:
        """Use ``service_url``, the ``brokerServiceUrl``: one address, or several separated by commas."""
        scheme, _, hosts = service_url.partition("://")
        self._services = [BrokerAddress(f"{scheme}://{host.strip()}") for host in hosts.split(",") if host.strip()]
        self._tls = scheme == "pulsar+ssl"
        self._connections = connections
        self._known: dict[TopicName, BrokerAddress] = {}

    def of(self, topic: TopicName) -> BrokerAddress:
        """Return the broker that serves the topic, by the last look-up; an unowned topic gets an owner."""
        known = self._known.get(topic)
        if known is None:
            known = self._looked_up(topic)
            if len(self._known) >= _REMEMBERED_TOPICS:
                self._known.clear()
            self._known[topic] = known
        return known

    def forget(self, topic: TopicName) -> None:
        """Forget a topic's broker, because it reported that it does not serve the topic, or cannot be reached."""
        self._known.pop(topic, None)

    def open(self, topic: TopicName) -> BinaryConnection:
        """Open a connection of the caller's own to the topic's broker."""
        return self._connections.open(self.of(topic))

    @contextmanager
    def using(self, topic: TopicName, *, own: bool = False) -> Iterator[BinaryConnection]:
        """Lend an idle or new connection to the topic's broker; forget the broker after a failure."""
        try:
            with closing(self.open(topic)) if own else self._connections.using(self.of(topic)) as connection:
                yield connection
        except (OSError, TemporaryError):
            self.forget(topic)
            raise

    def close(self) -> None:
        self._connections.close()

    def _looked_up(self, topic: TopicName) -> BrokerAddress:
        failure: TemporaryError | None = None
        for service in self._services:
            try:
                return self._follow(topic, service)
            except TemporaryError as error:
                failure = error
        raise failure or TemporaryError("no broker service URL is configured")

    def _follow(self, topic: TopicName, service: BrokerAddress) -> BrokerAddress:
        place, authoritative = service, False
        for _ in range(_MAX_LOOKUPS):
            answer = self._ask(topic, place, authoritative)
            url = answer.brokerServiceUrlTls if self._tls else answer.brokerServiceUrl
            if not url:
                raise PermanentError(f"the owner of {topic} has no address with this scheme; check brokerServiceUrl")
            next_place = BrokerAddress(url, service.url if answer.proxy_through_service_url else None)
            if answer.response == api.CommandLookupTopicResponse.Connect:
                return next_place
            place, authoritative = next_place, answer.authoritative
        raise TemporaryError(f"looking up {topic} was redirected too often; ownership is moving, try again")

    def _ask(self, topic: TopicName, place: BrokerAddress, authoritative: bool) -> api.CommandLookupTopicResponse:
        doing = f"looking up {topic} at {place.url}"
        lookup = api.CommandLookupTopic(topic=str(topic), authoritative=authoritative)
        try:
            with self._connections.using(place) as connection:
                answer = connection.request(lookup, api.BaseCommand.LOOKUP_RESPONSE, doing).lookupTopicResponse
        except OSError as error:
            raise TemporaryError(f"{doing}: the broker did not respond ({error}); try again") from error
        if answer.response == api.CommandLookupTopicResponse.Failed:
            raise server_error(doing, answer)
        return answer
