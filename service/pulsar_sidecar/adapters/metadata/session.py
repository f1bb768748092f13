"""One ZooKeeper session for all threads: it comes back by itself, and nobody waits for it without an end.

Nodes are made with ZooKeeper's open ACL, whatever the credential: brokers and bookies, who may have another one or
none, have to work with a ledger's node that is brought back.

Invariants: a call made without a connection fails within the patience configured, and at once when the connection has
been away for longer; a read is repeated until then, a write never is; a connection whose thread died is replaced.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from pulsar_sidecar.adapters.metadata.errors import (
    CLIENT_ERRORS,
    DEFINITE_ANSWERS,
    may_be_repeated,
    reading_failed,
    writing_failed,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError, UnreachableError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_RECONNECT_DELAY_SECONDS = 0.1
_RECONNECT_MAX_DELAY_SECONDS = 1.0
_REVIVAL_PAUSE_SECONDS = 1.0
_REPEAT_PAUSE_SECONDS = 0.1
_STOP_SECONDS = 5.0
_STOP_WITHOUT_SERVER_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ZooKeeperCredential:
    """What ``addauth`` takes, for example scheme ``digest`` and ``user:password``."""

    scheme: str
    secret: str

    def __repr__(self) -> str:
        return f"ZooKeeperCredential(scheme={self.scheme!r}, secret=...)"


def parse_credential(text: str | None) -> ZooKeeperCredential | None:
    """The setting ``metadataStoreAuth``: ``scheme:credential``; None is nobody in particular.

    Raises:
        InvalidInputError: it is not written so; the message does not repeat it.
    """
    if text is None:
        return None
    scheme, colon, secret = text.partition(":")
    if not colon or not secret:
        raise InvalidInputError("metadataStoreAuth must be scheme:credential, such as digest:user:password")
    return ZooKeeperCredential(scheme, secret)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How to reach ZooKeeper and how long to wait for it.

    Attributes:
        hosts: ZooKeeper's connect string, chroot included.
        session_timeout_ms: after so long without contact the server drops our ephemeral nodes.
        patience_seconds: how long a call may wait without any progress.
    """

    hosts: str
    session_timeout_ms: int
    patience_seconds: float
    credential: ZooKeeperCredential | None = None


class Patience:
    """The time left for one call; every bit of progress renews it."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._end = 0.0
        self.renew()

    def renew(self) -> None:
        self._end = self._clock.monotonic_seconds() + self._seconds

    def remaining_seconds(self) -> float:
        return max(0.0, self._end - self._clock.monotonic_seconds())

    def is_over(self) -> bool:
        return self.remaining_seconds() == 0.0

    def answer(self, result: "AsyncResult[T]") -> T:
        """The answer of a call in flight, or what kazoo raises for it; `KazooTimeoutError` when the time is over."""
        return result.get(timeout=self.remaining_seconds())


Attempt = Callable[[KazooClient, Patience], T]


class KazooSession:
    """Owns the kazoo client; every call to ZooKeeper goes through `reading` or `writing`."""

    def __init__(self, settings: SessionSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._epoch = 0
        self._session_id: int | None = None
        self._away_since: float | None = clock.monotonic_seconds()
        self._revived_at = clock.monotonic_seconds()
        self._chroot_seen = False
        self._client = self._start()

    @property
    def epoch(self) -> int:
        """Counts the sessions: when it has grown, every ephemeral node made before is gone or going."""
        self._living_client()
        with self._changed:
            return self._epoch

    def patience(self) -> Patience:
        return Patience(self._clock, self._settings.patience_seconds)

    def reading(self, what: str, attempt: Attempt[T]) -> T:
        """Ask until there is an answer or patience ends; for calls that change nothing.

        ZooKeeper's definite answers (`DEFINITE_ANSWERS`) are passed on as kazoo raises them.

        Raises:
            TemporaryError: no answer in time, or a refusal.
        """
        patience = self.patience()
        while True:
            client = self.connected(patience)
            try:
                return attempt(client, patience)
            except DEFINITE_ANSWERS:
                raise
            except CLIENT_ERRORS as error:
                if not may_be_repeated(error) or patience.is_over():
                    raise reading_failed(error, what) from error
                _LOG.debug("asking again to %s after %s", what, type(error).__name__)
            self.pause()

    def pause(self) -> None:
        """The wait before a call that changes nothing is made again."""
        self._clock.wait_seconds(_REPEAT_PAUSE_SECONDS, self._closed)

    def writing(self, what: str, attempt: Attempt[T]) -> T:
        """Ask once: a write that is sent again reports the first one's success as a failure (BookKeeper issue 1971).

        Raises:
            TemporaryError: not sent, or refused.
            OutcomeUnknownError: sent, and the answer was lost.
        """
        patience = self.patience()
        client = self.connected(patience)
        try:
            return attempt(client, patience)
        except DEFINITE_ANSWERS:
            raise
        except CLIENT_ERRORS as error:
            raise writing_failed(error, what) from error

    def connected(self, patience: Patience) -> KazooClient:
        """The client with a live connection.

        Raises:
            TemporaryError: there is none, or the chroot does not exist.
        """
        client = self._living_client()
        if not client.connected:
            with self._changed:
                self._changed.wait_for(lambda: client.connected or self._closed.is_set(), self._grace(patience))
        if self._closed.is_set():
            raise TemporaryError("the connection to the metadata store is closed; open it again")
        if not client.connected:
            raise UnreachableError(f"no connection to ZooKeeper at {self._settings.hosts}; check that it runs")
        self._demand_chroot(client, patience)
        return client

    def close(self) -> None:
        """End the session; ephemeral nodes vanish. Safe to call twice."""
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            self._changed.notify_all()
        self._stop(self._client)

    def _grace(self, patience: Patience) -> float:
        with self._changed:
            away_since = self._away_since
        if away_since is None:
            return patience.remaining_seconds()
        away = self._clock.monotonic_seconds() - away_since
        return min(patience.remaining_seconds(), max(0.0, self._settings.patience_seconds - away))

    def _demand_chroot(self, client: KazooClient, patience: Patience) -> None:
        # Below a chroot that does not exist every node looks absent.
        if self._chroot_seen or not client.chroot:
            return
        try:
            found = patience.answer(client.exists_async("/"))
        except CLIENT_ERRORS as error:
            raise reading_failed(error, f"look for {client.chroot}") from error
        if found is None:
            raise TemporaryError(f"ZooKeeper has no {client.chroot}; check the path in the metadata store's URL")
        self._chroot_seen = True

    def _start(self) -> KazooClient:
        settings = self._settings
        credential = settings.credential
        client = KazooClient(
            settings.hosts,
            timeout=settings.session_timeout_ms / 1000,
            auth_data=[(credential.scheme, credential.secret)] if credential else None,
            connection_retry=KazooRetry(
                max_tries=-1, delay=_RECONNECT_DELAY_SECONDS, max_delay=_RECONNECT_MAX_DELAY_SECONDS
            ),
            logger=_quiet_logger(),
        )
        client.add_listener(lambda state: self._on_state(client, state))
        client.start_async()
        return client

    def _on_state(self, client: KazooClient, state: str) -> None:
        with self._changed:
            if state == KazooState.CONNECTED:
                self._away_since = None
                self._note_session(client)
            elif self._away_since is None:
                self._away_since = self._clock.monotonic_seconds()
            self._changed.notify_all()
        if not self._closed.is_set():
            _LOG.info("connection to ZooKeeper: %s", state)

    def _note_session(self, client: KazooClient) -> None:
        identity = client.client_id
        if identity is not None and identity[0] != self._session_id:
            self._session_id = identity[0]
            self._epoch += 1

    def _living_client(self) -> KazooClient:
        if not _is_dead(self._client):
            return self._client
        with self._changed:
            client = self._client
            now = self._clock.monotonic_seconds()
            waiting = now - self._revived_at < _REVIVAL_PAUSE_SECONDS
            if self._closed.is_set() or waiting or not _is_dead(client):
                return client
            self._revived_at = now
            _LOG.warning("the connection to ZooKeeper ended for good; starting another session")
            self._client = self._start()
        self._stop(client)
        return self._client

    def _stop(self, client: KazooClient) -> None:
        # kazoo waits half a minute for a server that does not answer; whoever ends the process does not.
        stopping = threading.Thread(target=self._stop_in_order, args=(client,), name="zookeeper-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS if client.connected else _STOP_WITHOUT_SERVER_SECONDS)

    def _stop_in_order(self, client: KazooClient) -> None:
        try:
            client.stop()
            client.close()
        except (*CLIENT_ERRORS, OSError) as error:
            # The server drops the session when its timeout ends.
            _LOG.warning("the session with ZooKeeper was not ended in order: %s", type(error).__name__)


class Request(Protocol):
    """What kazoo's connection can write: an operation code and a body."""

    type: ClassVar[int]

    def serialize(self) -> bytes | bytearray: ...


def send(client: KazooClient, request: Request) -> "AsyncResult[object]":
    """Queue one request of our own making on the client's connection; answers come in the order of the requests."""
    result = client.handler.async_result()
    client._call(request, result)
    return result


def real_path(client: KazooClient, path: str) -> str:
    """The path as it goes over the wire, in requests of our own making: kazoo adds the chroot to its own only."""
    if not client.chroot:
        return path
    return client.chroot if path == "/" else client.chroot + path


def _is_dead(client: KazooClient) -> bool:
    # An exception that kazoo does not expect ends its connection thread without a way back.
    routine = client._connection._connection_routine
    return routine is None or not routine.is_alive()


class _OnlyErrors(logging.Filter):
    # At debug level kazoo writes whole requests into its log, the one with the credential too; `KazooSession` logs
    # the changes of state itself.
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.kazoo")
    if not logger.filters:
        logger.addFilter(_OnlyErrors())
        logger.setLevel(logging.ERROR)
    return logger
