"""A ZooKeeper session for all threads: it reconnects automatically, and every wait is limited.

It creates nodes with ZooKeeper's open ACL, whatever the credential: brokers and bookies, which may have a different one
or none, have to work with a ledger's node that is restored.

Invariants: a call made without a connection fails within the configured timeout, and at once when the connection was
lost longer ago; until then a read is retried, a write never is; a connection whose thread died is replaced. Every
exception class of kazoo has a place here (a test enumerates them), and only ZooKeeper's own response NoNode ever
becomes "there is no such node".
"""

import logging
import math
import select
import ssl
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypedDict, TypeVar

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult, KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from pulsar_sidecar.adapters.metadata_access import DEFAULT_OPTIONS, SessionOptions, StoreCredential, StoreTls
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError, UnreachableError

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_RECONNECT_DELAY_SECONDS = 0.1
_RECONNECT_MAX_DELAY_SECONDS = 1.0
_REVIVAL_PAUSE_SECONDS = 1.0
_REPEAT_PAUSE_SECONDS = 0.1
_STOP_SECONDS = 5.0
_STOP_WITHOUT_SERVER_SECONDS = 0.5

CLIENT_ERRORS = (exceptions.KazooException, KazooTimeoutError)
"""Exceptions of calls through kazoo."""

DEFINITE_ANSWERS: tuple[type[Exception], ...] = (
    exceptions.NoNodeError,
    exceptions.BadVersionError,
    exceptions.NodeExistsError,
    exceptions.NotEmptyError,
    exceptions.NoChildrenForEphemeralsError,
)
"""Results about the node, which the caller interprets."""
REFUSALS = (
    exceptions.APIError,
    exceptions.AuthFailedError,
    exceptions.BadArgumentsError,
    exceptions.ConfigurationError,
    exceptions.EphemeralOnLocalSessionError,
    exceptions.InvalidACLError,
    exceptions.InvalidCallbackError,
    exceptions.MarshallingError,
    exceptions.NewConfigNoQuorumError,
    exceptions.NoAuthError,
    exceptions.NoWatcherError,
    exceptions.NotReadOnlyCallError,
    exceptions.QuotaExceededError,
    exceptions.ReconfigDisabledError,
    exceptions.ReconfigInProcessError,
    exceptions.RolledBackError,
    exceptions.SASLException,
    exceptions.SessionClosedRequireSaslError,
    exceptions.ThrottledOpError,
    exceptions.UnimplementedError,
)
"""Refusals, after which nothing was changed; every other exception of kazoo's is a lost response."""
_RETRYABLE = (exceptions.ThrottledOpError, exceptions.NotReadOnlyCallError)
_CREDENTIAL_WANTED = (
    exceptions.AuthFailedError,
    exceptions.NoAuthError,
    exceptions.SessionClosedRequireSaslError,
    exceptions.SASLException,
)


def is_lost(error: Exception) -> bool:
    """Return True if there was no response: a write may or may not have taken effect."""
    return type(error) not in (*DEFINITE_ANSWERS, *REFUSALS)


def is_retryable(error: Exception) -> bool:
    """Return True if a retry may succeed soon, for a call that changes nothing."""
    return is_lost(error) or isinstance(error, _RETRYABLE)


def reading_failed(error: Exception, what: str) -> TemporaryError:
    """Return the error to raise when ``what`` (a phrase such as "read /a") could not be read."""
    return (UnreachableError if is_lost(error) else TemporaryError)(f"could not {what}: {_cause(error)}")


def writing_failed(error: Exception, what: str) -> SidecarError:
    """Return the error to raise when ``what`` got no usable response from the store."""
    if is_lost(error):
        return OutcomeUnknownError(f"no response to: {what} ({_cause(error)}); read it again, then decide")
    return TemporaryError(f"could not {what}: {_cause(error)}; nothing was changed")


def _cause(error: Exception) -> str:
    name = type(error).__name__
    if isinstance(error, _CREDENTIAL_WANTED):
        return f"ZooKeeper answered {name}; give the sidecar a credential that may do this"
    if isinstance(error, exceptions.UnimplementedError):
        return "this ZooKeeper does not know the request; ZooKeeper 3.6 or later is needed"
    if is_lost(error):
        return f"ZooKeeper did not respond ({name}); check that it is running and reachable"
    return f"ZooKeeper answered {name}"


class Deadline:
    """Deadline of one call, which all progress extends."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._end = 0.0
        self.renew()

    def renew(self) -> None:
        self._end = self._clock.monotonic_seconds() + self._seconds

    def remaining_seconds(self) -> float:
        return max(0.0, self._end - self._clock.monotonic_seconds())

    def answer(self, result: "AsyncResult[T]") -> T:
        """Return the response of a call in flight, or raise kazoo's error; `KazooTimeoutError` after the deadline."""
        return result.get(timeout=self.remaining_seconds())


Attempt = Callable[[KazooClient, Deadline], T]


class KazooSession:
    """Owner of the kazoo client; every call to ZooKeeper goes through `reading` or `writing`.

    Attributes:
        hosts: ZooKeeper's connect string, chroot included.
    """

    def __init__(self, url: str, clock: Clock, options: SessionOptions = DEFAULT_OPTIONS) -> None:
        """Start to connect and return at once; the first call waits for a connection.

        Args:
            url: see `parse_metadata_store_url`.
            clock: clock for waiting times; wall time is only ever the store's own.
            options: timeouts, credential and TLS.

        Raises:
            InvalidInputError: the URL is malformed or names a store without a driver, or a file of TLS cannot be used.
        """
        if options.tls is not None:
            options.tls.context()  # kazoo would retry forever with a bad file
        self.hosts = parse_metadata_store_url(url).hosts
        self._options = options
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._epoch = 0
        self._session_id: int | None = None
        self._away_since: float | None = clock.monotonic_seconds()
        self._revived_at = clock.monotonic_seconds()
        self._chroot_seen = self._refused = False
        self._client = self._start()

    @property
    def epoch(self) -> int:
        """Number of the session, from 0: when it has grown, every earlier ephemeral node is gone or will be."""
        self._living_client()
        with self._changed:
            return self._epoch

    def deadline(self) -> Deadline:
        return Deadline(self._clock, self._options.call_timeout_seconds)

    def reading(self, what: str, attempt: Attempt[T], answers: tuple[type[Exception], ...] = DEFINITE_ANSWERS) -> T:
        """Retry a call that changes nothing until there is a response or the deadline passes.

        ``answers`` (ZooKeeper's definite ones) are raised as kazoo raises them.

        Raises:
            TemporaryError: no response in time, or a refusal.
        """
        deadline = self.deadline()
        while True:
            client = self.connected(deadline)
            try:
                return attempt(client, deadline)
            except answers:
                raise
            except CLIENT_ERRORS as error:
                if not is_retryable(error) or deadline.remaining_seconds() == 0.0:
                    raise reading_failed(error, what) from error
                _LOG.debug("retrying to %s after %s", what, type(error).__name__)
            self._clock.wait_seconds(_REPEAT_PAUSE_SECONDS, self._closed)

    def writing(self, what: str, attempt: Attempt[T]) -> T:
        """Call once: a retried write would report the first one's success as a failure (BookKeeper issue 1971).

        Raises:
            TemporaryError: not sent, or refused.
            OutcomeUnknownError: sent, and the response was lost.
        """
        deadline = self.deadline()
        client = self.connected(deadline)
        try:
            return attempt(client, deadline)
        except DEFINITE_ANSWERS:
            raise
        except CLIENT_ERRORS as error:
            raise writing_failed(error, what) from error

    def connected(self, deadline: Deadline) -> KazooClient:
        """Return the client with a live connection.

        Raises:
            TemporaryError: there is none, or the chroot does not exist.
        """
        client = self._living_client()
        if not client.connected:
            with self._changed:
                self._changed.wait_for(
                    lambda: client.connected or self._refused or self._closed.is_set(), self._grace(deadline)
                )
        if self._closed.is_set():
            raise TemporaryError("the connection to the metadata store is closed; open it again")
        if not client.connected and self._refused:
            raise TemporaryError("ZooKeeper refused the credential; check metadataStoreAuth")
        if not client.connected:
            raise UnreachableError(f"no connection to ZooKeeper at {self.hosts}; check that it is running")
        self._demand_chroot(client, deadline)
        return client

    def close(self) -> None:
        """End the session; its ephemeral nodes vanish, and every later call raises `TemporaryError`. Idempotent."""
        with self._changed:
            if self._closed.is_set():
                return
            self._closed.set()
            self._changed.notify_all()
        self._stop(self._client)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _grace(self, deadline: Deadline) -> float:
        with self._changed:
            away_since = self._away_since
        if away_since is None:
            return deadline.remaining_seconds()
        away = self._clock.monotonic_seconds() - away_since
        return min(deadline.remaining_seconds(), max(0.0, self._options.call_timeout_seconds - away))

    def _demand_chroot(self, client: KazooClient, deadline: Deadline) -> None:
        # Below a missing chroot every node looks absent.
        if self._chroot_seen or not client.chroot:
            return
        try:
            found = deadline.answer(client.exists_async("/"))
        except CLIENT_ERRORS as error:
            raise reading_failed(error, f"look for {client.chroot}") from error
        if found is None:
            raise TemporaryError(f"ZooKeeper has no {client.chroot}; check the path in the metadata store's URL")
        self._chroot_seen = True

    def _start(self) -> KazooClient:
        client = _Client(
            self.hosts,
            timeout=self._options.timeout_ms / 1000,
            handler=_Handler(),
            **_identity(self._options.credential),
            **_security(self._options.tls),
            connection_retry=KazooRetry(
                max_tries=-1, delay=_RECONNECT_DELAY_SECONDS, max_delay=_RECONNECT_MAX_DELAY_SECONDS
            ),
            logger=_quiet_logger(),
        )
        client.on_refusal = self._on_refusal
        client.add_listener(lambda state: self._on_state(client, state))
        client.start_async()
        return client

    def _on_refusal(self) -> None:
        with self._changed:
            self._refused = True
            self._changed.notify_all()

    def _on_state(self, client: KazooClient, state: str) -> None:
        with self._changed:
            if state == KazooState.CONNECTED:
                self._away_since, self._refused = None, False
                identity = client.client_id
                if identity is not None and identity[0] != self._session_id:
                    self._session_id = identity[0]
                    self._epoch += 1
            elif self._away_since is None:
                self._away_since = self._clock.monotonic_seconds()
            self._changed.notify_all()
        if not self._closed.is_set():
            _LOG.info("connection to ZooKeeper: %s", state)

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
        def stop_in_order() -> None:
            try:
                client.stop()
                client.close()
            except (*CLIENT_ERRORS, OSError) as error:
                # The server drops the session when its timeout ends.
                _LOG.warning("the session with ZooKeeper was not closed cleanly: %s", type(error).__name__)

        # kazoo waits half a minute for a silent server; a process that ends does not.
        stopping = threading.Thread(target=stop_in_order, name="zookeeper-stop", daemon=True)
        stopping.start()
        stopping.join(_STOP_SECONDS if client.connected else _STOP_WITHOUT_SERVER_SECONDS)


class _Handler(SequentialThreadingHandler):
    """kazoo's handler with a wait of its own.

    kazoo's waits for a socket although TLS has already buffered a response, and opens, fills and closes an epoll object
    each time, four times a request.
    """

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], failing: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        poll = select.poll()
        for one in readable:
            poll.register(one, select.POLLIN)
        for one in writable:
            poll.register(one, select.POLLOUT)
        pending = [one for one in readable if isinstance(one, ssl.SSLSocket) and one.pending()]
        milliseconds = 0 if pending else None if timeout is None else math.ceil(timeout * 1000)
        ready = {number for number, _ in poll.poll(milliseconds)}
        return (
            [one for one in readable if one.fileno() in ready or one in pending],
            [one for one in writable if one.fileno() in ready],
            [],
        )


class _Client(KazooClient):
    """kazoo's client, which otherwise calls no listener when the server refuses the credential."""

    on_refusal: Callable[[], None]

    def _session_callback(self, state: str) -> None:
        super()._session_callback(state)
        if state == KeeperState.AUTH_FAILED:
            self.on_refusal()


class _Identity(TypedDict, total=False):
    auth_data: list[tuple[str, str]]
    sasl_options: dict[str, str]


class _Security(TypedDict, total=False):
    use_ssl: bool
    ca: str
    certfile: str | None
    keyfile: str | None
    check_hostname: bool


def _identity(credential: StoreCredential | None) -> _Identity:
    if credential is None:
        return {}
    if credential.sasl is None:
        return {"auth_data": [(credential.scheme, credential.secret)]}
    user, password = credential.sasl
    return {"sasl_options": {"mechanism": "DIGEST-MD5", "username": user, "password": password}}


def _security(tls: StoreTls | None) -> _Security:
    if tls is None:
        return {}
    certificate, key = (None if file is None else str(file) for file in (tls.certificate, tls.key))
    return {"use_ssl": True, "ca": str(tls.trusted), "certfile": certificate, "keyfile": key, "check_hostname": True}


def send(client: KazooClient, request: Any) -> "AsyncResult[object]":
    """Queue a custom request, which has a ``type`` (operation code) and can ``serialize`` its body.

    Responses come in the order of the requests.
    """
    result = client.handler.async_result()
    client._call(request, result)
    return result


def real_path(client: KazooClient, path: str) -> str:
    """Return the path on the wire for custom requests: kazoo adds the chroot only to its own."""
    if not client.chroot:
        return path
    return client.chroot if path == "/" else client.chroot + path


def _is_dead(client: KazooClient) -> bool:
    # An exception that kazoo does not expect ends its connection thread permanently.
    routine = client._connection._connection_routine
    return routine is None or not routine.is_alive()


def _quiet_logger() -> logging.Logger:
    # At debug level kazoo logs whole requests, even the one with the credential; `KazooSession` logs the changes
    # of state itself.
    logger = logging.getLogger(f"{__name__}.kazoo")
    if not logger.filters:
        logger.addFilter(lambda record: record.levelno >= logging.ERROR)
        logger.setLevel(logging.ERROR)
    return logger
