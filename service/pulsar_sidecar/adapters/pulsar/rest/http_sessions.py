"""HTTP connections that carry the sidecar's identity, one pool per thread.

Requests go to ``requests``' adapter and not through its session, which takes twice the processor time: what a session
adds (cookies, hooks, redirects, the environment) is not wanted here. Reads without TLS go a shorter way (`PlainReads`).

Invariant: the environment decides nothing: no proxy and no ``.netrc`` of the machine can add or replace a credential,
and no redirect is followed on its own.
"""

import threading
from dataclasses import dataclass
from typing import Final

import requests
from requests.adapters import HTTPAdapter
from requests.utils import default_headers

from pulsar_sidecar.adapters.pulsar.credentials import ClientCredentials, TlsOptions, tls_context
from pulsar_sidecar.adapters.pulsar.rest.plain_reads import PlainReads

_USUAL: Final = dict(default_headers())


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """How long a request may take to connect, and to wait for the next byte of its answer."""

    connect_seconds: float = 5.0
    read_seconds: float = 60.0


class HttpSessions:
    """Sends requests with the credentials attached; safe for use by several threads."""

    def __init__(self, credentials: ClientCredentials, tls: TlsOptions, timeouts: HttpTimeouts) -> None:
        self._credentials = credentials
        self._tls = tls
        self._timeouts = timeouts
        tls_context(credentials, tls)  # requests would tell a file that cannot be used only at the first request
        certificate = credentials.shown_certificate(tls)
        self._certificate = None if certificate is None else certificate.as_pair()
        trusted = tls.trust_certs_file
        self._verify: bool | str = False if tls.allow_insecure_connection else str(trusted) if trusted else True
        self._local = threading.local()
        self._plain = PlainReads(timeouts.connect_seconds, timeouts.read_seconds)

    def send(self, method: str, url: str, body: bytes | None, params: dict[str, str] | None) -> requests.Response:
        """One request to exactly this URL; redirects come back as answers.

        Raises:
            requests.RequestException: no answer came.
            NotAuthenticatedError: a token file cannot be read.
        """
        request = requests.PreparedRequest()
        request.prepare_method(method)
        request.prepare_url(url, params)
        headers = {**_USUAL, "Accept": "application/json", **self._credentials.http_headers()}
        if method == "GET" and request.url is not None and request.url.startswith("http://"):
            return self._plain.get(request.url, headers)
        request.prepare_headers(headers)
        request.prepare_body(body, None)
        if body is not None:
            request.headers["Content-Type"] = "application/json"
        answer = self._adapter().send(
            request,
            timeout=(self._timeouts.connect_seconds, self._timeouts.read_seconds),
            verify=self._verify,
            cert=self._certificate,
        )
        # The whole body is read here, so that what breaks while it comes is this request's failure.
        assert isinstance(answer.content, bytes)
        return answer

    def _adapter(self) -> HTTPAdapter:
        adapter = getattr(self._local, "adapter", None)
        if isinstance(adapter, HTTPAdapter):
            return adapter
        # Pulsar's tlsEnableHostnameVerification is off by default.
        made: HTTPAdapter = HTTPAdapter() if self._tls.hostname_verification else _AnyHostnameAdapter()
        self._local.adapter = made
        return made


class _AnyHostnameAdapter(HTTPAdapter):
    # Pulsar's tlsEnableHostnameVerification is off by default: the certificate is verified, its name is not.
    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **pool: object) -> None:
        super().init_poolmanager(connections, maxsize, block, assert_hostname=False, **pool)
