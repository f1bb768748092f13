"""HTTP connections that carry the sidecar's identity, one pool per thread.

Invariant: a session's environment decides nothing: no proxy and no ``.netrc`` of the machine can add or replace a
credential, and no redirect is followed on its own.
"""

import threading
from dataclasses import dataclass

import requests
from requests.adapters import HTTPAdapter

from service.adapters.pulsar.credentials import ClientCredentials, TlsOptions


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
        self._local = threading.local()

    def send(self, method: str, url: str, body: bytes | None, params: dict[str, str] | None) -> requests.Response:
        """One request to exactly this URL; redirects come back as answers.

        Raises:
            requests.RequestException: no answer came.
            NotAuthenticatedError: a token file cannot be read.
        """
        headers = {"Accept": "application/json", **self._credentials.http_headers()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        return self._session().request(
            method,
            url,
            params=params,
            data=body,
            headers=headers,
            timeout=(self._timeouts.connect_seconds, self._timeouts.read_seconds),
            allow_redirects=False,
        )

    def _session(self) -> requests.Session:
        session = getattr(self._local, "session", None)
        if isinstance(session, requests.Session):
            return session
        session = requests.Session()
        session.trust_env = False
        session.cert = self._credentials.http_certificate()
        trusted = self._tls.trust_certs_file
        session.verify = False if self._tls.allow_insecure_connection else str(trusted) if trusted else True
        if not self._tls.hostname_verification:
            session.mount("https://", _AnyHostnameAdapter())
        self._local.session = session
        return session


class _AnyHostnameAdapter(HTTPAdapter):
    # Pulsar's tlsEnableHostnameVerification is off by default: the certificate is verified, its name is not.
    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **pool: object) -> None:
        super().init_poolmanager(connections, maxsize, block, assert_hostname=False, **pool)
