"""HTTP connections that carry the sidecar's identity, in one pool of urllib3.

Invariant: the environment decides nothing: no proxy and no ``.netrc`` of the machine can add or replace a credential,
and no redirect is followed and no request repeated on its own.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from pulsar_sidecar.adapters.pulsar.credentials import ClientCredentials, TlsOptions, tls_context

_BROKERS: Final = 1_000
_KEPT_PER_BROKER: Final = 32


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """How long a request may take to connect, and to wait for the next byte of its answer."""

    connect_seconds: float = 5.0
    read_seconds: float = 60.0


class HttpSessions:
    """Sends requests with the credentials attached; safe for use by several threads."""

    def __init__(self, credentials: ClientCredentials, tls: TlsOptions, timeouts: HttpTimeouts) -> None:
        self._credentials = credentials
        tls_context(credentials, tls)  # the pool would report a file that cannot be used only at the first request
        certificate = credentials.shown_certificate(tls)
        # Files and not the context, so that every new connection shows the certificate that is there now.
        self._pool = urllib3.PoolManager(
            num_pools=_BROKERS,
            maxsize=_KEPT_PER_BROKER,
            retries=False,
            timeout=urllib3.Timeout(connect=timeouts.connect_seconds, read=timeouts.read_seconds),
            cert_reqs="CERT_NONE" if tls.allow_insecure_connection else "CERT_REQUIRED",
            ca_certs=str(tls.trust_certs_file or DEFAULT_CA_BUNDLE_PATH),
            cert_file=None if certificate is None else str(certificate.file),
            key_file=None if certificate is None else str(certificate.key_file),
            # Pulsar's tlsEnableHostnameVerification is off by default: the certificate is verified, its name is not.
            assert_hostname=None if tls.hostname_verification else False,
        )

    def send(self, method: str, url: str, body: bytes | None, params: dict[str, str]) -> urllib3.BaseHTTPResponse:
        """One request to exactly this URL, and its whole answer; redirects come back as answers.

        Raises:
            urllib3.exceptions.HTTPError: no answer came.
            NotAuthenticatedError: a token file cannot be read.
        """
        headers = {"Accept": "application/json", **self._credentials.http_headers()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        target = f"{url}?{urlencode(params)}" if params else url
        return self._pool.request(method, target, body=body, headers=headers, redirect=False)
