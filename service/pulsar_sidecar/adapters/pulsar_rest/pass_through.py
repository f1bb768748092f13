"""Pass-through of callers' requests to brokers, unchanged, with responses streamed as they arrive.

It runs on the server's event loop, because a thread for each upload would use up most threads
(docs/decisions/0018-passed-requests-on-the-event-loop.md).

Invariants: a request has the sidecar's credential only for a caller known only by certificate: then it has the caller's
role as ``X-Original-Principal``, and goes only to a broker that was seen to obey that. A request goes only to an
address that `AdminRest.is_broker` knows, and a change only for the path and the query that the caller wrote. A change
is retried only when the first attempt provably was not sent or was redirected, and its whole body is there. A read
does not wait for an unresponsive broker, and requests that need the same response of a broker first share one query.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, cast
from urllib.parse import urljoin, urlsplit

import aiohttp
import structlog
from cachetools import TTLCache
from yarl import URL

from pulsar_sidecar.adapters.pulsar_credentials import tls_context
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import (
    MAX_REDIRECTS,
    REDIRECTS,
    REDIRECTS_OF_READS,
    SILENT,
    AdminRest,
    is_same_request,
    shown_address,
)
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RUNTIME_CONFIGURATION, RuntimeConfiguration
from pulsar_sidecar.identity.credentials import ClientCertificate, ClientCredentials, TlsOptions
from pulsar_sidecar.model.errors import (
    ForeignRedirectError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    PassedChangeUnansweredError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.passed_requests import PassedRequest

_MOST_CONNECTIONS = 1_000
_MOST_OF_ONE_BROKER = 250
"""Requests that wait for one broker leave connections for the others."""
_CHECK_AFTER_SECONDS = 3.0
"""Wait for a response after which the sidecar checks that the broker is responsive."""
_QUERY_SECONDS = 5.0
_QUESTIONS_AT_ONCE = 8
_WAIT_SECONDS = aiohttp.ClientTimeout(total=None, connect=30, sock_connect=5, sock_read=300)
"""pulsar-admin and the Go admin client wait 300 seconds; the exchange ends sooner if the caller disconnects."""
_REREAD_SECONDS = 30
_MOST_HEADER_BYTES = 64 * 1024
_ADDED_BY_THE_LIBRARY = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_ORIGINAL_PRINCIPAL = "X-Original-Principal"
_CREDENTIALS = frozenset({"authorization", "x-pulsar-auth-method-name", "athenz-role-auth"})
"""Identity headers, which are removed where the sidecar adds its own."""
_log = structlog.get_logger(__name__)

T = TypeVar("T")


class PassedAnswer:
    """`model.passed_requests.BrokerAnswer`."""

    def __init__(self, response: aiohttp.ClientResponse, request: PassedRequest, url: str) -> None:
        self.status: int = response.status
        self.headers: Sequence[tuple[bytes, bytes]] = response.raw_headers
        self._response, self._request, self._url = response, request, url

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError) as error:
            shown = f"{self._request} at {shown_address(self._url)}"
            raise UnreachableError(
                f"{shown} was interrupted ({type(error).__name__}); send the request again"
            ) from error


@dataclass(frozen=True, slots=True)
class ProxyIdentity:
    """Identity of the sidecar to brokers when it speaks for a caller.

    Attributes:
        role: the role that brokers derive from the credentials; None if it cannot be known.
    """

    credentials: ClientCredentials
    role: str | None

    def headers(self, request: PassedRequest) -> Sequence[tuple[str, str]]:
        """Return the request's headers with this identity, on behalf of the caller."""
        own = {**self.credentials.http_headers(), _ORIGINAL_PRINCIPAL: request.on_behalf_of or ""}
        replaced = {name.lower() for name in own} | _CREDENTIALS
        return [*((name, value) for name, value in request.headers if name.lower() not in replaced), *own.items()]


class PassThrough:
    """`model.passed_requests.Brokers`: the configured brokers in their order, then the registered ones.

    It belongs to the event loop of its first call, on which `close` must be called too.
    """

    def __init__(
        self,
        rest: AdminRest,
        tls: TlsOptions,
        store: MetadataStore,
        proxy: ProxyIdentity,
        check_after_seconds: float = _CHECK_AFTER_SECONDS,
    ) -> None:
        """Use ``rest``, with the sidecar's own credentials, for brokers' settings, ``proxy`` to speak for others."""
        self._check_after_seconds = check_after_seconds
        self._rest, self._store, self._tls, self._proxy = rest, store, tls, proxy
        self._sessions: dict[ClientCertificate | None, aiohttp.ClientSession] = {}
        self._client_policies: Final[TTLCache[str, _ClientPolicy]] = TTLCache(1_000, _REREAD_SECONDS)
        self._queries: dict[str, asyncio.Task[Any]] = {}
        self._threads = ThreadPoolExecutor(_QUESTIONS_AT_ONCE, "passing")

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for session in self._sessions.values():
            await session.close()

    @asynccontextmanager
    async def answer(self, request: PassedRequest) -> AsyncIterator[PassedAnswer]:
        response, url = await self._first_answer(request)
        try:
            yield PassedAnswer(response, request, url)
        finally:
            if response.content.is_eof():
                response.release()
            else:
                response.close()

    async def _first_answer(self, request: PassedRequest) -> tuple[aiohttp.ClientResponse, str]:
        try:
            return await self._answer_of(request, self._rest.bases)
        except _NotAcceptedError:
            registered = self._run_in_thread(self._rest.registered)
            return await self._answer_of(request, await self._shared(request, "the registered brokers", registered))

    async def _answer_of(self, request: PassedRequest, bases: Sequence[str]) -> tuple[aiohttp.ClientResponse, str]:
        failure: SidecarError = TemporaryError(f"{request}: no broker is registered in the metadata store; try again")
        for base in bases:
            try:
                return await self._followed(request, base)
            except _NotAcceptedError as error:
                failure = error
        raise failure

    async def _followed(self, request: PassedRequest, base: str) -> tuple[aiohttp.ClientResponse, str]:
        url = base + request.target
        for _ in range(MAX_REDIRECTS + 1):
            proxy = None
            if not request.vouched or request.on_behalf_of is not None:
                proxy = await self._proxy_for(request, urljoin(url, "/"))
            response = await self._attempt(request, url, proxy)
            location = response.headers.get("Location")
            if location is None or response.status not in (REDIRECTS_OF_READS if request.is_read else REDIRECTS):
                return response, url
            response.close()
            url = await self._redirected(request, url, location)
        raise TemporaryError(f"{request}: redirected more than {MAX_REDIRECTS} times; ownership is moving, try again")

    async def _redirected(self, request: PassedRequest, url: str, location: str) -> str:
        target = urljoin(url, location)
        downgrade = urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https"
        if downgrade or not (self._rest.is_known(target) or await self._is_broker(request, target)):
            raise ForeignRedirectError(
                f"{request}: redirect to an unknown host {shown_address(target)}, to which the sidecar sends no "
                "credential; add the address to the sidecar's webServiceUrl if it belongs to this cluster"
            )
        if not request.is_read and not is_same_request(url, target):
            raise ForeignRedirectError(
                f"{request}: {shown_address(url)} redirects it to another path or query, so nothing was done; call "
                "a broker itself, and check that webServiceUrl leads to brokers"
            )
        if not isinstance(request.body, bytes):
            raise InvalidInputError(
                f"{request}: the broker redirects to {shown_address(target)}, and the body is too large to be sent "
                "twice; send it to that address"
            )
        return target

    async def _is_broker(self, request: PassedRequest, target: str) -> bool:
        address = shown_address(target)
        query = self._run_in_thread(lambda: self._rest.is_broker(target))
        return await self._shared(request, f"whether {address} is a broker", query)

    def _run_in_thread(self, query: Callable[[], T]) -> Callable[[], Awaitable[T]]:
        return lambda: asyncio.get_running_loop().run_in_executor(self._threads, query)

    async def _shared(self, request: PassedRequest, what: str, query: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a query that concurrent requests share; one that waits too long tries another broker."""
        shared = self._queries.get(what)
        if shared is None:
            shared = self._queries[what] = asyncio.ensure_future(_awaited(query))
            shared.add_done_callback(lambda _: self._queries.pop(what))
        await asyncio.wait({shared}, timeout=_QUERY_SECONDS)
        if not shared.done():
            raise _NotAcceptedError(f"{request}: {what} is not known after {_QUERY_SECONDS:g} s; try again")
        return cast(T, shared.result())

    async def _attempt(self, request: PassedRequest, url: str, proxy: ProxyIdentity | None) -> aiohttp.ClientResponse:
        if url in self._rest.unresponsive:
            raise _NotAcceptedError(f"{request} at {shown_address(url)}: {SILENT}")
        try:
            async with self._while_responsive(request, url):
                return await self._session(None if proxy is None else proxy.credentials.certificate).request(
                    request.method,
                    URL(url, encoded=True),
                    data=request.body or None,
                    headers=request.headers if proxy is None else proxy.headers(request),
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            cause = SILENT if url in self._rest.unresponsive else type(error).__name__
            reason = f"{request} at {shown_address(url)}: {cause}"
            # A body in pieces is unread then: the library takes the first piece once it is connected.
            if isinstance(error, _NOT_SENT):
                raise _NotAcceptedError(f"{reason}; check that the broker runs") from error
            if request.is_read:
                raise _NotAcceptedError(f"{reason}; try again") from error
            raise PassedChangeUnansweredError(
                f"{reason}, so it may have taken effect; read the state before you repeat it"
            ) from error

    @asynccontextmanager
    async def _while_responsive(self, request: PassedRequest, url: str) -> AsyncIterator[None]:
        """Raise `TimeoutError` for a read whose broker is unresponsive; a change may still take effect, so it waits."""
        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        async with asyncio.timeout(None) as limit:

            async def watch() -> None:
                while not await asyncio.shield(asyncio.wrap_future(self._rest.unresponsive.suspect(url))):
                    await asyncio.sleep(self._check_after_seconds)
                if request.is_read:
                    limit.reschedule(loop.time())

            # Most responses come sooner, and a task for each would be expensive.
            later = loop.call_later(self._check_after_seconds, lambda: watching.append(loop.create_task(watch())))
            try:
                yield
            finally:
                later.cancel()
                for task in watching:
                    task.cancel()

    async def _proxy_for(self, request: PassedRequest, base: str) -> ProxyIdentity | None:
        """Return the identity that speaks for the caller at this broker; None if the caller speaks for itself."""
        policy = self._client_policies.get(base)
        if policy is None:
            policy = await self._shared(
                request, f"how {shown_address(base)} treats clients", lambda: self._read_client_policy(base)
            )
        if not policy.authenticates and not request.vouched:
            raise NotAuthenticatedError(
                f"{request}: the broker authenticates no client, so the sidecar passes only requests of its "
                "superUserRoles; send such a role's token"
            )
        if not policy.authenticates or request.on_behalf_of is None:
            return None
        if policy.refusal is not None:
            raise NotAuthorizedError(
                f"{request}: a certificate cannot be passed on, and the sidecar may not speak for others at "
                f"{shown_address(base)}: {policy.refusal}. Send a token, or call the broker itself"
            )
        return self._proxy

    async def _read_client_policy(self, base: str) -> "_ClientPolicy":
        configuration = await self._run_in_thread(lambda: self._configuration(base))()
        authenticates = configuration.flag("authenticationEnabled")
        proxies = {role.strip() for role in (configuration.text("proxyRoles") or "").strip("[]").split(",")}
        refusal = None
        if self._proxy.role is None or self._proxy.role not in proxies:
            refusal = f"its role {self._proxy.role!r} is not among proxyRoles (adminPassThroughAuthParams)"
        elif authenticates and not await self._honours_original_principal(base):
            refusal = "the broker lets a nonexistent role read what only superusers may (authorizationEnabled)"
        self._client_policies[base] = found = _ClientPolicy(authenticates, refusal)
        return found

    def _configuration(self, base: str) -> RuntimeConfiguration:
        try:
            return RuntimeConfiguration.of(self._rest, base)
        except SidecarError as error:
            kind = _NotAcceptedError if isinstance(error, UnreachableError) else TemporaryError
            raise kind(f"whether the broker authenticates its clients could not be read: {error}") from error

    async def _honours_original_principal(self, base: str) -> bool:
        """Return True if ``X-Original-Principal`` removes rights: older brokers ignore it from roles but proxies'."""
        role = f"no-such-role-{uuid.uuid4()}"
        request = PassedRequest("GET", RUNTIME_CONFIGURATION, [], b"", vouched=True, on_behalf_of=role)
        response = await self._attempt(request, base.rstrip("/") + request.target, self._proxy)
        response.close()
        if response.status >= 300 and response.status not in (401, 403):
            raise TemporaryError(f"{shown_address(base)} answered {response.status} to a proxy's request; try again")
        return response.status >= 300

    def _session(self, certificate: ClientCertificate | None) -> aiohttp.ClientSession:
        if certificate not in self._sessions:
            tls = replace(self._tls, client_certificate=certificate)
            session = self._sessions[certificate] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=_MOST_CONNECTIONS,
                    limit_per_host=_MOST_OF_ONE_BROKER,
                    ssl=tls_context(ClientCredentials(), tls),
                ),
                timeout=_WAIT_SECONDS,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_ADDED_BY_THE_LIBRARY,
                auto_decompress=False,
                max_line_size=_MOST_HEADER_BYTES,
                max_field_size=_MOST_HEADER_BYTES,
            )
            # The library would retry PUT and DELETE after a broken connection. There is no option against it; a test
            # checks that this works.
            session._retry_connection = False
        return self._sessions[certificate]


@dataclass(frozen=True, slots=True)
class _ClientPolicy:
    """A broker's treatment of its clients.

    Attributes:
        authenticates: True if it authenticates them.
        refusal: reason for which the sidecar cannot speak for others there; None if it can.
    """

    authenticates: bool
    refusal: str | None


async def _awaited(query: Callable[[], Awaitable[T]]) -> T:
    return await query()


class _NotAcceptedError(UnreachableError):
    """Raised when a retry at another broker is safe."""
