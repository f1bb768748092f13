"""Requests to etcd's JSON gateway (``/v3/...``), for all threads: every wait is limited.

Invariants: a read is retried, at every endpoint, until the call's timeout; a write is sent once, and one whose response
was lost is reported as such. Only etcd's own response ever becomes "there is no such key". Reads are linearizable.
"""

import base64
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Self

import urllib3

from pulsar_sidecar.adapters.etcd.revision_times import REFRESH_SECONDS, RevisionTimes
from pulsar_sidecar.adapters.metadata_access import CLOCK_PATH, DEFAULT_OPTIONS, SessionOptions
from pulsar_sidecar.features.doctor.facts import StoreServer
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.model.metadata_stores import ETCD

_ENDPOINT = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_FORM = "etcd:http://host:port[,http://host:port...], or https"
_NOT_SENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.SSLError,
)
"""Failures before anything was sent."""
_SILENCE_SECONDS = 60.0
"""Silence after which a stream is restarted: a member that vanished sends nothing either."""
_REPORT_SECONDS = 3.0
_REPEAT_PAUSE_SECONDS = 0.1
_KEPT_CONNECTIONS = 64
_LOST_CODES = frozenset({1, 2, 4, 10, 13, 14, 15})
"""gRPC's codes after which a write may have been applied: etcd reports a lost leader or its own timeout this way."""
_RETRYABLE_CODES = _LOST_CODES | {8}
_NOT_FOUND: Final = 5
_NOT_PERMITTED: Final = 7
_UNAUTHENTICATED: Final = 16
_CHECK_AUTH: Final = "; check metadataStoreAuth"
_ADVICE: Mapping[int, str] = {
    _NOT_PERMITTED: "; give the sidecar a user that may do this",
    _UNAUTHENTICATED: _CHECK_AUTH,
}
_NO_LOGIN: Final = ("authentication failed", "user name is empty")

Answer = Mapping[str, Any]
"""Decoded JSON of a response, with the names of ``rpc.proto``; zeros and empty values are left out."""


class _Refusal(Exception):  # noqa: N818
    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RefusedError(TemporaryError):
    """Raised for etcd's definite refusal, after which nothing was changed."""

    def __init__(self, what: str, refusal: Exception) -> None:
        self.code = refusal.code if isinstance(refusal, _Refusal) else None
        advice = _ADVICE.get(self.code or 0, "")
        if any(sign in str(refusal) for sign in _NO_LOGIN):
            advice = _CHECK_AUTH
        super().__init__(f"could not {what}: etcd answered {str(refusal)!r}{advice}; nothing was changed")

    @property
    def lease_not_found(self) -> bool:
        return self.code == _NOT_FOUND and "lease" in str(self)

    @property
    def not_permitted(self) -> bool:
        return self.code == _NOT_PERMITTED


class _LostError(Exception):
    """Raised when there is no response; ``sent`` is False if etcd cannot have received the request."""

    def __init__(self, cause: str, *, sent: bool) -> None:
        super().__init__(cause)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a response."""

    path: str
    data: bytes
    version: int
    created: int
    modified: int
    lease: int

    @classmethod
    def of(cls, document: Answer) -> Self:
        return cls(
            base64.b64decode(document["key"]).decode(),
            base64.b64decode(document.get("value", "")),
            *(int(document.get(name, 0)) for name in ("version", "create_revision", "mod_revision", "lease")),
        )


def endpoints_of(url: str) -> tuple[str, ...]:
    """Return the endpoints in Pulsar's form of the URL, ``etcd:http://host:port,http://host:port``.

    Raises:
        InvalidInputError: another form.
    """
    endpoints = tuple(each.strip().rstrip("/") for each in url.strip().removeprefix(ETCD).split(","))
    for endpoint in endpoints:
        if not _ENDPOINT.fullmatch(endpoint):
            raise InvalidInputError(f"{endpoint!r:.200} is not an endpoint; give the metadata store's URL as {_FORM}")
    return endpoints


def encoded(text: str | bytes) -> str:
    """Return a key or a value as the gateway takes it."""
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def below(path: str) -> dict[str, str]:
    """Return the range of all keys below a path."""
    prefix = "/" if path == "/" else f"{path}/"
    return {"key": encoded(prefix), "range_end": encoded(f"{prefix[:-1]}0")}


class EtcdGateway:
    """Client of one etcd cluster; safe for use by several threads.

    Attributes:
        endpoints: members' client URLs.
        times: the store's time, and the times of revisions.
    """

    def __init__(self, url: str, clock: Clock, options: SessionOptions = DEFAULT_OPTIONS) -> None:
        """Prepare; the first request connects.

        Raises:
            InvalidInputError: the URL, the credential or a file of TLS cannot be used.
        """
        self.endpoints = endpoints_of(url)
        self.times = RevisionTimes(clock)
        self.clock = clock
        self.options = options
        self.closed = threading.Event()
        self._first = 0
        self._learning = threading.Lock()
        self._learned_at = float("-inf")
        self._user = _user_of(options)
        self._token: str | None = None
        self._pool = urllib3.PoolManager(
            num_pools=len(self.endpoints) + 1,
            maxsize=_KEPT_CONNECTIONS,
            retries=False,
            ssl_context=None if options.tls is None else options.tls.context(),
        )

    def close(self) -> None:
        """Make every later call raise `TemporaryError`; idempotent."""
        self.closed.set()
        self._pool.clear()

    def reading(self, what: str, method: str, body: Answer) -> Answer:
        """Send a request that changes nothing, or may be applied twice, until there is a response.

        Raises:
            TemporaryError: etcd refuses it (`RefusedError`), or no response in time.
        """
        end = self.clock.monotonic_seconds() + self.options.call_timeout_seconds
        while True:
            try:
                return self._ask(method, body, end)
            except (_LostError, _Refusal) as error:
                if isinstance(error, _Refusal) and error.code not in _RETRYABLE_CODES:
                    raise RefusedError(what, error) from error
                if self.clock.monotonic_seconds() >= end:
                    raise self._unreachable(what, error) from error
            self.clock.wait_seconds(_REPEAT_PAUSE_SECONDS, self.closed)

    def writing(self, what: str, method: str, body: Answer) -> Answer:
        """Send a request once: a retried write would report the first one's success as a failure.

        Raises:
            TemporaryError: etcd refuses it (`RefusedError`), or it was not sent.
            OutcomeUnknownError: the response was lost.
        """
        try:
            return self._ask(method, body, self.clock.monotonic_seconds() + self.options.call_timeout_seconds)
        except _LostError as error:
            if not error.sent:
                raise self._unreachable(what, error) from error
            raise OutcomeUnknownError(f"no response to: {what} ({error}); read it again, then decide") from error
        except _Refusal as error:
            raise RefusedError(what, error) from error

    def learn_times(self) -> None:
        """Read the times of revisions that the store keeps, unless this was done within the last half minute."""
        with self._learning:
            now = self.clock.monotonic_seconds()
            if now - self._learned_at < REFRESH_SECONDS:
                return
            answer = self.reading(f"read {CLOCK_PATH}", "kv/range", {"key": encoded(CLOCK_PATH)})
            for key in keys_of(answer):
                self.times.learn(key.data)
            self._learned_at = now

    def stream(self, method: str, body: Answer) -> Iterator[Answer]:
        """Yield a stream's responses until it ends, or is silent for a minute; raise as `reading`, without a retry."""
        endpoint = self.endpoints[self._first]
        try:
            response = self._pool.request(
                "POST",
                f"{endpoint}/v3/{method}",
                body=json.dumps(body),
                headers=self._headers(),
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=self.options.call_timeout_seconds, read=_SILENCE_SECONDS),
            )
            with closing(response):
                if response.status != 200:
                    raise self._refusal(response.status, response.read())
                rest = b""
                for chunk in response.stream(None):
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in filter(None, lines):
                        yield _decoded(line)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._turn_from(endpoint)
            raise UnreachableError(f"the stream from etcd at {endpoint} broke ({type(error).__name__})") from error
        except (_LostError, _Refusal) as error:
            self._turn_from(endpoint)
            self._token = None
            raise RefusedError(f"read the stream from etcd at {endpoint}", error) from error

    def server(self, address: str) -> StoreServer:
        """Return the report of the member at ``host:port``.

        Raises:
            UnreachableError: there is no connection to it, or no response in 3 s.
        """
        endpoint = next(each for each in self.endpoints if each.endswith(f"//{address}"))
        try:
            answer = self._pool.request("GET", f"{endpoint}/version", redirect=False, timeout=_REPORT_SECONDS)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(str(error)) from error
        version = _decoded(answer.data).get("etcdserver") if answer.status == 200 else None
        return StoreServer(None if version is None else str(version), product="etcd")

    def _ask(self, method: str, body: Answer, end: float) -> Answer:
        """Send a request to the first endpoint that can be reached; a second time where the token was too old."""
        try:
            return self._send_to_any(method, body, end)
        except _Refusal as error:
            if error.code != _UNAUTHENTICATED or self._user is None:
                raise
        self._token = None
        return self._send_to_any(method, body, end)

    def _send_to_any(self, method: str, body: Answer, end: float) -> Answer:
        lost: _LostError | None = None
        for _ in self.endpoints:
            if self.closed.is_set():
                raise TemporaryError("the connection to the metadata store is closed; open it again")
            endpoint = self.endpoints[self._first]
            try:
                return self._send(endpoint, method, body, end)
            except _LostError as error:
                self._turn_from(endpoint)
                lost = error
                if error.sent:
                    break
        assert lost is not None
        raise lost

    def _turn_from(self, endpoint: str) -> None:
        if self.endpoints[self._first] == endpoint:
            self._first = (self._first + 1) % len(self.endpoints)

    def _send(self, endpoint: str, method: str, body: Answer, end: float) -> Answer:
        headers = self._headers() if method != "auth/authenticate" else None
        seconds = max(0.1, end - self.clock.monotonic_seconds())
        sent = self.clock.monotonic_seconds()
        try:
            response = self._pool.request(
                "POST",
                f"{endpoint}/v3/{method}",
                body=json.dumps(body),
                headers=headers,
                redirect=False,
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
            )
        except urllib3.exceptions.HTTPError as error:
            raise _LostError(type(error).__name__, sent=not isinstance(error, _NOT_SENT)) from error
        if response.status != 200:
            raise self._refusal(response.status, response.data)
        answer = _decoded(response.data)
        revision = int(answer.get("header", {}).get("revision", 0))
        self.times.observe(revision, response.headers.get("Date"), sent, self.clock.monotonic_seconds())
        return answer

    def _headers(self) -> dict[str, str] | None:
        if self._user is None:
            return None
        token = self._token
        if token is None:
            end = self.clock.monotonic_seconds() + self.options.call_timeout_seconds
            token = self._token = str(self._send_to_any("auth/authenticate", self._user, end)["token"])
        return {"Authorization": token}

    @staticmethod
    def _refusal(status: int, data: bytes) -> _LostError | _Refusal:
        try:
            document = json.loads(data)
            code, message = int(document["code"]), str(document["message"])
        except (ValueError, KeyError, TypeError):
            # A proxy, or no etcd at all.
            return _LostError(f"HTTP status {status}", sent=True)
        return _LostError(message, sent=True) if code in _LOST_CODES else _Refusal(code, message)

    def _unreachable(self, what: str, error: Exception) -> TemporaryError:
        return UnreachableError(
            f"could not {what}: etcd at {','.join(self.endpoints)} did not respond ({error}); "
            "check that it is running and reachable"
        )


def keys_of(answer: Answer) -> list[Key]:
    """Return the keys of a range's response."""
    return [Key.of(each) for each in answer.get("kvs", ())]


def operations_of(answer: Answer, kind: str = "response_range") -> Sequence[Answer]:
    """Return the responses to a transaction's operations, all of one kind."""
    return [each[kind] for each in answer.get("responses", ())]


def _decoded(data: bytes) -> Answer:
    try:
        document = json.loads(data)
        if isinstance(document, dict):
            return document
    except ValueError:
        pass
    raise _LostError("this is not a response of etcd's JSON gateway", sent=True)


def _user_of(options: SessionOptions) -> Answer | None:
    credential = options.credential
    if credential is None:
        return None
    name, colon, password = credential.secret.partition(":")
    if credential.scheme != "digest" or not colon:
        raise InvalidInputError("metadataStoreAuth for etcd must be digest:user:password")
    return {"name": name, "password": password}
