"""Requests of others, passed to brokers as they are, and answered in pieces as they arrive.

It runs on the server's event loop, because a thread for each upload would be most of the threads there are
(docs/decisions/0018-passed-requests-on-the-event-loop.md).

Invariants: no request has a credential of the sidecar's, but for a caller that is known by certificate only: then it
has the caller's role as ``X-Original-Principal``, and goes only to a broker that was seen to obey that. A request goes
only to an address that `AdminRest.is_broker` knows, and a change only for the path and the query that the caller wrote.
A change is sent a second time only when the first attempt provably never left or was answered by a redirect, and its
body is all there. A read does not wait for a broker that answers nothing at all, and what has to be asked before a
request may go is asked once for all that wait for it.
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

from pulsar_sidecar.adapters.pulsar.credentials import tls_context
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import (
    MAX_REDIRECTS,
    REDIRECTS,
    REDIRECTS_OF_READS,
    SILENT,
    AdminRest,
    asks_the_same,
    shown_address,
)
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import RUNTIME_CONFIGURATION, RuntimeConfiguration
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
"""What waits for one broker leaves connections for the others."""
_PATIENCE_SECONDS = 3.0
"""A read without an answer for so long has its broker asked whether it answers anything."""
_QUESTION_SECONDS = 5.0
_QUESTIONS_AT_ONCE = 8
_WAIT_SECONDS = aiohttp.ClientTimeout(total=None, connect=30, sock_connect=5, sock_read=300)
"""pulsar-admin and the Go admin client wait 300 seconds; the exchange ends sooner when the caller leaves."""
_LOOK_AGAIN_SECONDS = 30
_MOST_HEADER_BYTES = 64 * 1024
_ADDED_BY_THE_LIBRARY = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_NEVER_LEFT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_ORIGINAL_PRINCIPAL = "X-Original-Principal"
_CREDENTIALS = frozenset({"authorization", "x-pulsar-auth-method-name", "athenz-role-auth"})
"""No second identity goes beside the sidecar's."""
_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Answer:
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
            raise UnreachableError(f"{shown} broke off ({type(error).__name__}); send the request again") from error


@dataclass(frozen=True, slots=True)
class ProxyIdentity:
    """Who the sidecar is to brokers when it speaks for a caller.

    Attributes:
        role: as brokers take it from the credentials; None if it cannot be known.
    """

    credentials: ClientCredentials
    role: str | None

    def headers(self, request: PassedRequest) -> Sequence[tuple[str, str]]:
        """The request's, with this identity, and in the caller's name."""
        own = {**self.credentials.http_headers(), _ORIGINAL_PRINCIPAL: request.on_behalf_of or ""}
        replaced = {name.lower() for name in own} | _CREDENTIALS
        return [*((name, value) for name, value in request.headers if name.lower() not in replaced), *own.items()]


class PassThrough:
    """`model.passed_requests.Brokers`: the configured brokers in their order, then those that are registered.

    It belongs to the event loop that asks it first, on which `close` is called as well.
    """

    def __init__(
        self,
        rest: AdminRest,
        tls: TlsOptions,
        store: MetadataStore,
        proxy: ProxyIdentity,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """``rest`` reads brokers' configuration, with the sidecar's own credentials; ``proxy`` speaks for others."""
        self._patience_seconds = patience_seconds
        self._rest, self._store, self._tls, self._proxy = rest, store, tls, proxy
        self._sessions: dict[ClientCertificate | None, aiohttp.ClientSession] = {}
        self._looks: Final[TTLCache[str, _Look]] = TTLCache(1_000, _LOOK_AGAIN_SECONDS)
        self._questions: dict[str, asyncio.Task[Any]] = {}
        self._threads = ThreadPoolExecutor(_QUESTIONS_AT_ONCE, "passing")

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for session in self._sessions.values():
            await session.close()

    @asynccontextmanager
    async def answer(self, request: PassedRequest) -> AsyncIterator[Answer]:
        response, url = await self._first_answer(request)
        try:
            yield Answer(response, request, url)
        finally:
            if response.content.is_eof():
                response.release()
            else:
                response.close()

    async def _first_answer(self, request: PassedRequest) -> tuple[aiohttp.ClientResponse, str]:
        try:
            return await self._answer_of(request, self._rest.bases)
        except _NotTakenError:
            registered = self._in_thread(self._rest.registered)
            return await self._answer_of(request, await self._shared(request, "the registered brokers", registered))

    async def _answer_of(self, request: PassedRequest, bases: Sequence[str]) -> tuple[aiohttp.ClientResponse, str]:
        failure: SidecarError = TemporaryError(f"{request}: no broker is registered in the metadata store; try again")
        for base in bases:
            try:
                return await self._followed(request, base)
            except _NotTakenError as error:
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
        if not request.is_read and not asks_the_same(url, target):
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
        look = self._in_thread(lambda: self._rest.is_broker(target))
        return await self._shared(request, f"whether {address} is a broker", look)

    def _in_thread(self, ask: Callable[[], T]) -> Callable[[], Awaitable[T]]:
        return lambda: asyncio.get_running_loop().run_in_executor(self._threads, ask)

    async def _shared(self, request: PassedRequest, what: str, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a question that all who wait for it share; whoever waits too long takes another broker."""
        question = self._questions.get(what)
        if question is None:
            question = self._questions[what] = asyncio.ensure_future(_asked(ask))
            question.add_done_callback(lambda _: self._questions.pop(what))
        await asyncio.wait({question}, timeout=_QUESTION_SECONDS)
        if not question.done():
            raise _NotTakenError(f"{request}: {what} is not known after {_QUESTION_SECONDS:g} s; try again")
        return cast(T, question.result())

    async def _attempt(self, request: PassedRequest, url: str, proxy: ProxyIdentity | None) -> aiohttp.ClientResponse:
        if url in self._rest.silent:
            raise _NotTakenError(f"{request} at {shown_address(url)}: {SILENT}")
        try:
            async with self._as_long_as_it_answers(request, url):
                return await self._session(None if proxy is None else proxy.credentials.certificate).request(
                    request.method,
                    URL(url, encoded=True),
                    data=request.body or None,
                    headers=request.headers if proxy is None else proxy.headers(request),
                    allow_redirects=False,
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            cause = SILENT if url in self._rest.silent else type(error).__name__
            reason = f"{request} at {shown_address(url)}: {cause}"
            # A body in pieces is untouched then: the library asks for the first one when it is connected.
            if isinstance(error, _NEVER_LEFT):
                raise _NotTakenError(f"{reason}; check that the broker runs") from error
            if request.is_read:
                raise _NotTakenError(f"{reason}; try again") from error
            raise PassedChangeUnansweredError(
                f"{reason}, so it may have taken effect; read the state before you repeat it"
            ) from error

    @asynccontextmanager
    async def _as_long_as_it_answers(self, request: PassedRequest, url: str) -> AsyncIterator[None]:
        """A `TimeoutError` breaks a read off whose broker is silent; a change may be carried out yet, and waits."""
        loop, watching = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        async with asyncio.timeout(None) as limit:

            async def watch() -> None:
                while not await asyncio.shield(asyncio.wrap_future(self._rest.silent.suspect(url))):
                    await asyncio.sleep(self._patience_seconds)
                if request.is_read:
                    limit.reschedule(loop.time())

            # Most answers come sooner, and a task for each would cost much of what is done here.
            later = loop.call_later(self._patience_seconds, lambda: watching.append(loop.create_task(watch())))
            try:
                yield
            finally:
                later.cancel()
                for task in watching:
                    task.cancel()

    async def _proxy_for(self, request: PassedRequest, base: str) -> ProxyIdentity | None:
        """Who speaks for the caller at this broker; None where the caller speaks for itself."""
        look = self._looks.get(base)
        if look is None:
            look = await self._shared(request, f"how {shown_address(base)} treats clients", lambda: self._look(base))
        if not look.authenticates and not request.vouched:
            raise NotAuthenticatedError(
                f"{request}: the broker authenticates no client, so the sidecar passes only requests of its "
                "superUserRoles; send such a role's token"
            )
        if not look.authenticates or request.on_behalf_of is None:
            return None
        if look.refusal is not None:
            raise NotAuthorizedError(
                f"{request}: a certificate cannot be passed on, and the sidecar may not speak for others at "
                f"{shown_address(base)}: {look.refusal}. Send a token, or call the broker itself"
            )
        return self._proxy

    async def _look(self, base: str) -> "_Look":
        configuration = await self._in_thread(lambda: self._configuration(base))()
        authenticates = configuration.flag("authenticationEnabled")
        proxies = {role.strip() for role in (configuration.text("proxyRoles") or "").strip("[]").split(",")}
        refusal = None
        if self._proxy.role is None or self._proxy.role not in proxies:
            refusal = f"its role {self._proxy.role!r} is not among proxyRoles (adminPassThroughAuthParams)"
        elif authenticates and not await self._is_obeyed(base):
            refusal = "the broker gave a role that does not exist what only superusers may have (authorizationEnabled)"
        self._looks[base] = found = _Look(authenticates, refusal)
        return found

    def _configuration(self, base: str) -> RuntimeConfiguration:
        try:
            return RuntimeConfiguration.of(self._rest, base)
        except SidecarError as error:
            kind = _NotTakenError if isinstance(error, UnreachableError) else TemporaryError
            raise kind(f"whether the broker authenticates its clients could not be read: {error}") from error

    async def _is_obeyed(self, base: str) -> bool:
        """Whether ``X-Original-Principal`` takes rights away: older brokers ignore it of other roles than a proxy's."""
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
            # The library would send PUT and DELETE again when a connection breaks. There is no option against it; a
            # test holds that this works.
            session._retry_connection = False
        return self._sessions[certificate]


@dataclass(frozen=True, slots=True)
class _Look:
    """What a broker does with its clients.

    Attributes:
        authenticates: whether it asks them who they are.
        refusal: why the sidecar cannot speak for others there; None if it can.
    """

    authenticates: bool
    refusal: str | None


async def _asked(ask: Callable[[], Awaitable[T]]) -> T:
    return await ask()


class _NotTakenError(UnreachableError):
    """Asking another broker instead is safe."""
