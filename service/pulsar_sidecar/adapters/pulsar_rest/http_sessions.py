"""HTTP requests with credentials attached.

The environment has no influence: no proxy and no ``.netrc`` of the machine can add or replace a credential.
"""

from collections.abc import Mapping
from urllib.parse import urlencode

import urllib3
from requests.utils import DEFAULT_CA_BUNDLE_PATH

from pulsar_sidecar.adapters.pulsar_credentials import check_tls_files
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions

_POOLED_BROKERS = 1_000
_KEPT_PER_BROKER = 256
"""Largest number of threads that use one broker at once: urllib3 closes further connections with a warning."""


class HttpSessions:
    """HTTP client with the credentials attached; safe for use by several threads."""

    def __init__(
        self, credentials: ClientCredentials, tls: TlsOptions, connect_seconds: float, read_seconds: float
    ) -> None:
        self._credentials = credentials
        self.connect_seconds, self.read_seconds = connect_seconds, read_seconds
        check_tls_files(credentials, tls)  # the pool would report a bad file only at the first request
        certificate = credentials.shown_certificate(tls)
        # Files and not the context, so that every new connection shows the certificate that is there now.
        self._pool = urllib3.PoolManager(
            num_pools=_POOLED_BROKERS,
            maxsize=_KEPT_PER_BROKER,
            retries=False,
            cert_reqs="CERT_NONE" if tls.allow_insecure_connection else "CERT_REQUIRED",
            ca_certs=str(tls.trust_certs_file or DEFAULT_CA_BUNDLE_PATH),
            cert_file=None if certificate is None else str(certificate.file),
            key_file=None if certificate is None else str(certificate.key_file),
            # Pulsar's tlsEnableHostnameVerification is off by default: the certificate is verified, its name is not.
            assert_hostname=None if tls.hostname_verification else False,
        )

    def send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        read_seconds: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send one request to exactly this URL and return its whole response; redirects are responses too.

        ``read_seconds`` replaces the usual longest wait for the next byte of the response.
        """
        headers = {"Accept": "application/json", **self._credentials.http_headers()}
        if body is not None:
            headers["Content-Type"] = "application/json"
        target = f"{url}?{urlencode(params)}" if params else url
        timeout = urllib3.Timeout(connect=self.connect_seconds, read=read_seconds or self.read_seconds)
        return self._pool.request(method, target, body=body, headers=headers, redirect=False, timeout=timeout)
