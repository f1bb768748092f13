"""The command line's client of the REST service.

Invariants: the client sends a request once; a missing response is an `UnreachableError`, never success; the client
follows a redirect once, and only to a sidecar that the service itself lists, so a token goes nowhere else.
"""

import json
import ssl
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import LocationParseError

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import ServiceRefusedError
from pulsar_sidecar.identity.credentials import ClientCredentials
from pulsar_sidecar.model.addresses import names_sidecar_at, origin
from pulsar_sidecar.model.errors import InvalidInputError, UnreachableError
from pulsar_sidecar.model.tls import load_certificate, trusting
from pulsar_sidecar.server.warnings import WARNING_HEADER

_T = TypeVar("_T")

_MOST_CONNECTIONS = 100
"""Connections kept open for commands that send several requests at a time."""


class _AnyHostname(HTTPAdapter):
    """HTTPS adapter that checks the certificate's signature but not its name."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, assert_hostname=False, **kwargs)


class SidecarClient:
    """A client of one sidecar; thread-safe."""

    def __init__(
        self,
        admin_url: str,
        credentials: ClientCredentials,
        timeout_seconds: float,
        *,
        trusted: Path | None,
        allow_insecure: bool,
        verify_hostname: bool,
    ) -> None:
        if urlsplit(admin_url).scheme not in ("http", "https"):
            raise InvalidInputError("--admin-url must begin with http:// or https://, such as http://127.0.0.1:8750")
        self._url = admin_url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        session = requests.Session()
        session.trust_env = False  # no proxy and no .netrc may take the token's place
        if trusted is not None:
            trusting(trusted)  # requests would fail for an unusable file only at the first call
        session.verify = not allow_insecure and (True if trusted is None else str(trusted))
        https = HTTPAdapter if verify_hostname else _AnyHostname
        session.mount("http://", HTTPAdapter(pool_maxsize=_MOST_CONNECTIONS))
        session.mount("https://", https(pool_maxsize=_MOST_CONNECTIONS))
        shown = credentials.certificate
        if shown is not None:
            load_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), shown.file, shown.key_file)
            session.cert = (str(shown.file), str(shown.key_file))

        def identify(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers.update(credentials.http_headers())  # for each request: a token may have been replaced
            return request

        session.auth = identify
        self._request = partial(session.request, timeout=timeout_seconds, allow_redirects=False)

    def call(self, method: str, path: str, body: object = None, parameters: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON response, None for an empty one; ``path`` is encoded, parameters without a value are omitted.

        Raises:
            ServiceRefusedError: the service returned an error.
            UnreachableError: no response came.
        """
        response = self._send(method, self._url + path, body, parameters)
        if response.status_code == 307:
            response = self._send(method, self._followed(response), body, None)
        answer = _answer(response)
        if warning := response.headers.get(WARNING_HEADER):
            output.info(output.printable(f"warning: {warning}"))
        return answer

    def result(
        self,
        kind: type[_T],
        method: str,
        path: str,
        body: object = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> _T:
        """Return the JSON response as ``kind``, or a list of it; raises as `call`, and ValueError for another type."""
        from pulsar_sidecar.server.answers import parse_answer

        return parse_answer(kind, self.call(method, path, body, parameters))

    def result_if_any(
        self, kind: type[_T], method: str, path: str, parameters: Mapping[str, Any] | None = None
    ) -> _T | None:
        """Return what `result` does; None for an empty response."""
        from pulsar_sidecar.server.answers import parse_answer

        answer = self.call(method, path, parameters=parameters)
        return None if answer is None else parse_answer(kind, answer)

    def lines(
        self, kind: type[_T], method: str, path: str, body: bytes, parameters: Mapping[str, str | None]
    ) -> Iterator[_T]:
        """Yield the JSON lines of a response, each as ``kind``, as they arrive; the body is sent unchanged.

        Raises:
            ServiceRefusedError: the service returned an error, or with anything but lines of this kind.
            UnreachableError: no response came, or it was interrupted.
        """
        from pulsar_sidecar.server.answers import parse_answer

        try:
            headers = {"Content-Type": "application/json"}
            with self._request(
                method, self._url + path, data=body, params=parameters, headers=headers, stream=True
            ) as response:
                if response.status_code >= 300:
                    raise ServiceRefusedError(response.status_code, _reason(response))
                for line in response.iter_lines():
                    if line:
                        yield parse_answer(kind, json.loads(line))
        except requests.RequestException as error:
            raise UnreachableError(
                f"the answer from {origin(self._url)} was interrupted ({type(error).__name__}); what was printed is "
                "done, and every call may be repeated"
            ) from error
        except ValueError as error:
            raise ServiceRefusedError(200, "the answer is not JSON lines; does --admin-url name a sidecar?") from error

    def _send(self, method: str, url: str, body: object, parameters: Mapping[str, Any] | None) -> requests.Response:
        try:
            return self._request(method, url, json=body, params=parameters)
        except requests.ReadTimeout as error:
            raise UnreachableError(
                f"no answer from {origin(url)} within {self._timeout_seconds:g} s; --request-timeout waits longer"
            ) from error
        except (requests.RequestException, LocationParseError) as error:
            raise UnreachableError(
                f"no answer from {origin(url)} ({type(error).__name__}); is the sidecar running there? "
                "Choose another one with --admin-url"
            ) from error

    def _followed(self, response: requests.Response) -> str:
        location = response.headers.get("Location", "")
        status = _answer(self._send("GET", f"{self._url}/admin/v2/ledger-deletion/status", None, None))
        if not names_sidecar_at(status, location):
            raise ServiceRefusedError(
                307, f"redirected to {origin(location)}, which is not a registered sidecar here; ask it by --admin-url"
            )
        return location


def _answer(response: requests.Response) -> Any:
    if response.status_code >= 300:
        raise ServiceRefusedError(response.status_code, _reason(response))
    if not response.content:
        return None
    try:
        return response.json()
    except requests.JSONDecodeError as error:
        raise ServiceRefusedError(
            response.status_code, "the answer is not JSON; does --admin-url name a sidecar?"
        ) from error


def _reason(response: requests.Response) -> str:
    try:
        document = response.json()
    except requests.JSONDecodeError:
        return "the error has no reason; does --admin-url name a sidecar?"
    return str(document.get("reason", document)) if isinstance(document, dict) else str(document)
