"""Client of brokers' admin REST API: fail-over, redirects, and translation of responses into our errors.

Invariants: the client sends credentials only to known brokers, and an address is known because a setting, the metadata
store or a configured broker named it, never because a redirect did; it retries a change only when the first attempt
provably was not sent or was redirected, and always for the same path and query; it reports an absence only when a
broker did in its own words (``{"reason": ...}``), not because some proxy returned 404; it sends nothing to an
unresponsive broker until it responds again.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode, urljoin, urlsplit

import orjson
import urllib3

from pulsar_sidecar.adapters.pulsar_errors import http_error, was_not_sent
from pulsar_sidecar.adapters.pulsar_rest.http_sessions import HttpSessions
from pulsar_sidecar.adapters.pulsar_rest.unresponsive_brokers import UnresponsiveBrokers
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, java_url_encode

BROKERS_PATH: Final = "/loadbalance/brokers"
VERSION_PATH: Final = "/admin/v2/brokers/version"
SILENT: Final = "the broker is not responding; check whether it hangs, and restart it if it does"
MAX_REDIRECTS = 5
REDIRECTS = (307, 308)
REDIRECTS_OF_READS = (301, 302, 303, *REDIRECTS)
_MAX_REASON = 500
_TOPIC_SEGMENTS = 7
"""``/admin/v2/persistent/tenant/namespace/topic`` and ``/admin/persistent/tenant/cluster/namespace/topic``."""
_REMEMBERED_OWNERS = 10_000
_AUTHORITATIVE = "authoritative"
"""Query parameter of a redirect to a broker that need not look up the topic's owner."""
_V1_PATHS = ("/admin/persistent/", "/admin/non-persistent/", "/admin/namespaces/")
"""Paths for names with a cluster."""
_METADATA_ERROR = "KeeperErrorCode = "
_WITHOUT_OWNER = ("Can't find owner for ", "Failed to find ownership for ")
"""Reasons with 412 while a bundle moves between brokers (``PulsarWebResource.validateTopicOwnershipAsync``, 4.0.8)."""
NOT_OF_THIS_CLUSTER: Final = re.compile(
    r"Namespace missing local cluster name in clusters list: local_cluster=\S+ ns=\S+"
)
"""Refusal (412) of topics whose namespace has only other clusters; a deletion quotes it in a 500, after 30 s."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_FIRST_READ_SECONDS = 10.0
"""Timeout of a read's first attempt; it is retried once with the usual timeout if its broker returns anything else."""
_SILENT_SECONDS = 3.0
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker's registration (``LocalBrokerData`` or ``BrokerLookupData``).

    Attributes:
        broker_id: ``advertisedAddress:webPort``, the node's name.
        web_service_urls: the plain and the TLS address, if it has them.
        created_order: the registration's order of creation; a restarted broker has another.
        extensible: True if it runs the extensible load manager, which keeps bundle owners out of the metadata store.
    """

    broker_id: str
    web_service_urls: tuple[str, ...]
    created_order: int
    extensible: bool = False


def live_brokers(store: MetadataStore) -> list[Broker]:
    """Return the brokers registered now, by name; raise `TemporaryError` for a registration that cannot be read."""
    names = store.children(BROKERS_PATH) or []
    nodes = store.read_many([f"{BROKERS_PATH}/{name}" for name in names])
    return [_broker(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]


def demand_brokers(store: MetadataStore) -> list[Broker]:
    """Return `live_brokers`; raise `TemporaryError` if there is none."""
    brokers = live_brokers(store)
    if not brokers:
        raise TemporaryError("no broker is registered in the metadata store; try again when one is up")
    return brokers


def _broker(name: str, node: Node) -> Broker:
    document = json_object(node.data, f"the registration of broker {name}")
    urls = (document.get("webServiceUrl"), document.get("webServiceUrlTls"))
    found = tuple(url.rstrip("/") for url in urls if isinstance(url, str) and url)
    if not found:
        raise TemporaryError(f"broker {name} registered no web service URL; try again")
    extensible = "ExtensibleLoadManager" in str(document.get("loadManagerClassName"))
    return Broker(name, found, node.created_order, extensible)


def json_object(data: bytes, what: str) -> dict[str, Any]:
    """Return a JSON object that brokers keep in the metadata store; ``what`` names it in the `TemporaryError`."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TemporaryError(f"{what} is not a JSON document; try again") from error
    if not isinstance(document, dict):
        raise TemporaryError(f"{what} is not a JSON object; try again")
    return document


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    params: dict[str, str]
    body: bytes | None

    @property
    def change(self) -> bool:
        return self.method != "GET"

    @property
    def matter(self) -> str:
        """The topic's part of the path, empty for a request that concerns no topic."""
        parts = self.path.split("/", _TOPIC_SEGMENTS)
        return "/".join(parts[:_TOPIC_SEGMENTS]) if "persistent" in parts[2:4] else ""

    def redirected_by(self, answer: urllib3.BaseHTTPResponse) -> bool:
        # Only 307 and 308 promise that the request may be repeated as it is, method and body.
        return answer.status in (REDIRECTS if self.change else REDIRECTS_OF_READS)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def topic_path(topic: TopicName, suffix: str = "") -> str:
    """Return a topic's REST path, its local name encoded as by ``java.net.URLEncoder``; V1 names have another root."""
    version = "" if topic.cluster else "/v2"
    return f"/admin{version}/{topic.domain.value}/{topic.namespace}/{java_url_encode(topic.local_name)}{suffix}"


def namespace_path(namespace: str, suffix: str = "", collection: str = "namespaces") -> str:
    """Return a namespace's REST path; those of V1, ``tenant/cluster/namespace``, have another root."""
    return f"/admin{'' if is_v1(namespace) else '/v2'}/{collection}/{namespace}{suffix}"


def is_v1(namespace: str) -> bool:
    return namespace.count("/") == 2


class AdminRest:
    """Admin REST API of one cluster; safe for use by several threads.

    Every method raises `TemporaryError` when no broker responds or owns the topic, `NotFoundError` on a 404,
    `NotAuthenticatedError` or `NotAuthorizedError` on 401 and 403, `BrokerRefusedError` on any other 4xx, and
    `PermanentError` for a redirect to an address that is not a known broker's. A change whose response was lost, or
    that got a 5xx or a 404 of ZooKeeper's, is an `OutcomeUnknownError`.

    Attributes:
        unresponsive: brokers that do not respond, to which nothing is sent.
    """

    def __init__(
        self,
        web_service_urls: Sequence[str],
        credentials: ClientCredentials | None = None,
        tls: TlsOptions | None = None,
        *,
        store: MetadataStore | None = None,
        connect_seconds: float = 5.0,
        read_seconds: float = 60.0,
        first_read_seconds: float = _FIRST_READ_SECONDS,
    ) -> None:
        """Use ``web_service_urls`` in order; each may itself be a comma-separated list, as pulsar-admin takes it.

        ``read_seconds`` is the longest wait for the next byte of a response, ``first_read_seconds`` that of a read's
        first attempt.

        Raises:
            InvalidInputError: one of them is not an http or https URL.
        """
        self.bases = _bases(web_service_urls)
        self.addresses = ", ".join(map(shown_address, self.bases))
        self._first_read_seconds = first_read_seconds
        identity = (credentials or ClientCredentials(), tls or TlsOptions())
        self._sessions = HttpSessions(*identity, connect_seconds, read_seconds)
        self._probes = HttpSessions(
            *identity, *(min(_SILENT_SECONDS, each) for each in (connect_seconds, read_seconds))
        )
        self.unresponsive = UnresponsiveBrokers(self._is_unresponsive, SystemClock())
        self._store = store
        self._configured = frozenset(map(_address_of, self.bases))
        self._known = self._configured
        self._owners: dict[str, str] = {}

    def get(self, path: str, params: Mapping[str, str] | None = None) -> object:
        """Return the JSON response to a GET from the broker that owns the topic; None for an empty response."""
        return _document(self._send(_Call("GET", path, dict(params or {}), None)))

    def headers(self, path: str) -> Mapping[str, str]:
        return self._send(_Call("GET", path, {}, None)).headers

    def get_with_headers(self, path: str) -> tuple[object, Mapping[str, str]]:
        answer = self._send(_Call("GET", path, {}, None))
        return _document(answer), answer.headers

    def reachable(self, urls: Sequence[str]) -> Sequence[str]:
        """Return a broker's usable addresses: never a plain one while the configured ones use TLS."""
        scheme = urlsplit(self.bases[0]).scheme
        same = [url for url in urls if urlsplit(url).scheme == scheme]
        return same or [url for url in urls if urlsplit(url).scheme == "https"]

    def get_exactly(self, web_service_url: str, path: str, params: Mapping[str, str] | None = None) -> object:
        """Return the JSON response of exactly this broker; raise `TemporaryError` on a redirect (its owner changed)."""
        return self.get_exactly_with_headers(web_service_url, path, params)[0]

    def get_exactly_with_headers(
        self, web_service_url: str, path: str, params: Mapping[str, str] | None = None
    ) -> tuple[object, Mapping[str, str]]:
        """Return the response as `get_exactly` does, with its headers."""
        call = _Call("GET", path, dict(params or {}), None)
        if not self.reachable([web_service_url]) or not self.is_broker(web_service_url):
            raise PermanentError(
                f"{shown_address(web_service_url)} is not a broker of this cluster; nothing was sent to it"
            )
        answer = self._attempt(call, web_service_url.rstrip("/") + path, call.params)
        if call.redirected_by(answer):
            raise TemporaryError(f"{call}: {web_service_url} is no longer the owner; try again")
        return _document(_checked(call, answer)), answer.headers

    def change(self, method: str, path: str, body: object = None, params: Mapping[str, str] | None = None) -> object:
        """Send PUT, POST or DELETE with a JSON body (None: no body); return the JSON response."""
        encoded = None if body is None else json.dumps(body).encode()
        return _document(self._send(_Call(method, path, dict(params or {}), encoded)))

    def _send(self, call: _Call) -> urllib3.BaseHTTPResponse:
        failure: SidecarError | None = None
        for base in self._places(call):
            try:
                answer = self._followed(call, base + call.path)
            except _NotSentError as error:
                self._owners.pop(call.matter, None)
                failure = error.failure
                continue
            if answer.status >= 500 and not call.change:
                self._owners.pop(call.matter, None)
                failure = _failure(call, answer)
                continue
            return _checked(call, answer)
        raise failure or UnreachableError(f"{call} at {self.addresses}: {SILENT}")

    def _places(self, call: _Call) -> Sequence[str]:
        """Return the addresses to try: first the last redirect's target for this topic, to spare a redirect."""
        bases = self.registered() if all(base in self.unresponsive for base in self.bases) else self.bases
        owner = None if call.change else self._owners.get(call.matter)
        if owner is None or not self.is_broker(owner):
            return bases
        return owner, *(base for base in bases if base != owner)

    def registered(self) -> Sequence[str]:
        """Return registered brokers' addresses, for when no configured one is responsive; none without the store."""
        try:
            brokers = [] if self._store is None else live_brokers(self._store)
        except SidecarError as error:
            _LOGGER.warning("the registered brokers could not be read: %s", error)
            brokers = []
        return [url for broker in brokers for url in self.reachable(broker.web_service_urls)[:1]]

    def _followed(self, call: _Call, url: str) -> urllib3.BaseHTTPResponse:
        params = call.params
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._attempt(call, url, params)
            if not call.redirected_by(answer):
                return answer
            # The broker repeats the query in the address it names.
            url, params = self._redirected(call, url, params, answer), {}
            if not call.change and call.matter:
                if len(self._owners) >= _REMEMBERED_OWNERS:
                    self._owners.clear()
                self._owners[call.matter] = urljoin(url, "/").rstrip("/")
        raise TemporaryError(f"{call}: redirected more than {MAX_REDIRECTS} times; ownership is moving, try again")

    def _redirected(self, call: _Call, url: str, params: dict[str, str], answer: urllib3.BaseHTTPResponse) -> str:
        target = urljoin(url, answer.headers.get("Location", ""))
        downgrade = urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https"
        if downgrade or not self.is_broker(target):
            raise PermanentError(
                f"{call}: redirect to an unknown host {shown_address(target)}; add the broker's address to the "
                "configured web service URLs if it belongs to this cluster"
            )
        if call.change and not is_same_request(f"{url}?{urlencode(params)}" if params else url, target):
            raise PermanentError(
                f"{call}: {shown_address(url)} redirects it to another path or query, so it was not carried out; check "
                "that the configured web service URLs lead to brokers"
            )
        return target

    def _attempt(self, call: _Call, url: str, params: dict[str, str]) -> urllib3.BaseHTTPResponse:
        if url in self.unresponsive:
            raise _NotSentError(UnreachableError(f"{call} at {shown_address(url)}: {SILENT}"))
        try:
            return self._send_repeating_reads(call, url, params)
        except urllib3.exceptions.HTTPError as error:
            failure = http_error(error, f"{call} at {shown_address(url)}", change=call.change)
            if was_not_sent(error) or (isinstance(failure, TemporaryError) and not call.change):
                raise _NotSentError(failure) from error
            raise failure from error

    def _send_repeating_reads(self, call: _Call, url: str, params: dict[str, str]) -> urllib3.BaseHTTPResponse:
        """Send a request, a read again while the broker is responsive; send a change once."""
        may_repeat = not call.change and self._sessions.read_seconds > self._first_read_seconds
        first_seconds = self._first_read_seconds if may_repeat else None
        try:
            return self._sessions.send(call.method, url, call.body, params, first_seconds)
        except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError):
            verdict = self.unresponsive.suspect(url)
            if not may_repeat or verdict.result():
                raise
        return self._sessions.send(call.method, url, call.body, params)

    def _is_unresponsive(self, base: str) -> bool:
        try:
            self._probes.send("GET", urljoin(base, VERSION_PATH))
        except (urllib3.exceptions.ReadTimeoutError, urllib3.exceptions.ConnectTimeoutError):
            return True
        except urllib3.exceptions.HTTPError:
            return False  # nothing listens there, or TLS fails: callers get that error at once
        return False

    def is_known(self, url: str) -> bool:
        """Return True if `is_broker` returns True without a request."""
        return _address_of(url) in self._known

    def is_broker(self, url: str) -> bool:
        """Return True if the address belongs to a broker of this cluster; refresh the list for an unknown one."""
        address = _address_of(url)
        if address is None or address in self._known:
            return address is not None
        known = set(self._configured)
        for source in (self._registered, self._listed):
            try:
                known.update(map(_address_of, source()))
            except SidecarError as error:
                # One source may be closed to this role; the other's list is as good, and fewer are stricter.
                _LOGGER.warning("a list of brokers could not be read: %s", error)
        self._known = frozenset(known)
        return address in known

    def _registered(self) -> list[str]:
        if self._store is None:
            return []
        return [url for broker in live_brokers(self._store) for url in broker.web_service_urls]

    def _listed(self) -> list[str]:
        # Called while following a redirect: only configured brokers, and no further redirect.
        call = _Call("GET", "/admin/v2/brokers", {}, None)
        for base in self.bases:
            try:
                document = _document(_checked(call, self._attempt(call, base + call.path, {})))
            except SidecarError:
                continue
            if isinstance(document, list):
                return [f"http://{name}" for name in document if isinstance(name, str)]
        raise TemporaryError("no configured broker lists the cluster's brokers")


class _NotSentError(UnreachableError):
    # Trying another broker instead is safe. Callers outside this module see the plain failure, which this extends.
    def __init__(self, failure: SidecarError) -> None:
        super().__init__(str(failure))
        self.failure = failure


def _bases(urls: Sequence[str]) -> tuple[str, ...]:
    bases = tuple(part.strip().rstrip("/") for url in urls for part in url.split(",") if part.strip())
    for index, base in enumerate(bases):
        if "://" not in base and index:
            # Pulsar's multi-host form names the scheme once: http://a:8080,b:8080
            bases = (*bases[:index], f"{urlsplit(bases[0]).scheme}://{base}", *bases[index + 1 :])
    for base in bases:
        if _address_of(base) is None:
            raise InvalidInputError(f"{shown_address(base)} is not a web service URL; write http://host:port")
    if not bases:
        raise InvalidInputError("no web service URL is configured; write http://host:port")
    return bases


def _address_of(url: str) -> tuple[str, int] | None:
    """Return host and port of an http or https URL, lower-cased and with the default port; None for others."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or port is None:
        return None
    return parts.hostname.lower(), port


def is_same_request(url: str, target: str) -> bool:
    """Return True if both URLs request the same; a redirect may be spelt differently, and add ``authoritative``.

    Redirects of lookups differ, but lookups are reads.
    """
    return _normalized(url) == _normalized(target)


def _normalized(url: str) -> tuple[list[bytes], list[tuple[str, str]]]:
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True, errors="surrogateescape")
    return (
        [unquote_to_bytes(segment) for segment in parts.path.split("/")],
        sorted(each for each in query if each[0] != _AUTHORITATIVE),
    )


def shown_address(url: str) -> str:
    # Never the whole URL: it may contain a user's password or a query.
    try:
        parts = urlsplit(url)
        shown = f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "(an address that cannot be read)"
    return shown[:200]


def _checked(call: _Call, answer: urllib3.BaseHTTPResponse) -> urllib3.BaseHTTPResponse:
    if answer.status < 300:
        return answer
    raise _failure(call, answer)


def _failure(call: _Call, answer: urllib3.BaseHTTPResponse) -> SidecarError:
    status, reason = answer.status, _reason(answer)
    shown = reason or f"{status} without a reason"
    # Brokers return 401 with a reason of their own to an authenticated role that lacks the right.
    if status == 401 and reason is None:
        return NotAuthenticatedError(f"{call}: {shown}; check the sidecar's credentials for the brokers")
    if status in (401, 403):
        return NotAuthorizedError(f"{call}: {shown}; grant the sidecar's role this operation")
    # A broker's own read of the metadata store may fail by a missing node, for instance of a moving bundle.
    is_brokers_own = status == 404 and reason is not None and _METADATA_ERROR in reason
    if status == 404 and reason is not None and not is_brokers_own:
        return NotFoundError(reason)
    if status in (408, 429) or (status == 412 and shown.startswith(_WITHOUT_OWNER)):
        return TemporaryError(f"{call}: {shown}; try again")
    refused = None if reason is None else NOT_OF_THIS_CLUSTER.search(reason)
    if status >= 500 and refused is not None:
        return BrokerRefusedError(412, refused[0])
    if 400 <= status < 500 and not is_brokers_own:
        return BrokerRefusedError(status, reason or _unexplained(call, status))
    if call.change:
        return OutcomeUnknownError(f"{call}: {status} {shown}, so it may have taken effect; read the state again")
    return TemporaryError(f"{call}: {status} {shown}; try again")


def _reason(answer: urllib3.BaseHTTPResponse) -> str | None:
    try:
        document = json.loads(answer.data)
    except (ValueError, RecursionError):
        return None
    reason = document.get("reason") if isinstance(document, dict) else None
    return reason[:_MAX_REASON] if isinstance(reason, str) else None


def _unexplained(call: _Call, status: int) -> str:
    """Return the error message for a refusal without the broker's own reason."""
    if status != 404:
        return f"{call} failed without a reason; see the broker's log"
    if call.path.startswith(_V1_PATHS):
        return (
            f"this broker does not have the path {call}. Brokers from 4.2 on have no names with a cluster (V1), and no "
            "paths for them: use the name tenant/namespace/topic, or ask a broker of an earlier version"
        )
    return (
        f"this broker does not have the path {call}; check that webServiceUrl leads to brokers, or a Pulsar proxy, and "
        "which version they run"
    )


def _document(answer: urllib3.BaseHTTPResponse) -> object:
    """Return the response as JSON, or as a string if it is not JSON; None if it is empty."""
    if not answer.data:
        return None
    for read in (orjson.loads, json.loads):  # Jackson may write NaN and the like, which only the second one reads
        try:
            document: object = read(answer.data)
        except (ValueError, RecursionError):
            continue
        return document
    return answer.data.decode(errors="replace")
