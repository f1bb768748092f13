"""Requests to another sidecar, if only that one has the data."""

from pathlib import Path
from typing import Any

import requests
from starlette.concurrency import run_in_threadpool

from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.web.in_process import Answer, answer_of

_SECONDS = (3.05, 10.0)


class PeerClient:
    """`ask.SendToPeer` over HTTP, without redirects."""

    def __init__(self, trusted: Path | None) -> None:
        """Trust the CA certificates in a PEM file; None trusts the system's."""
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy and no .netrc may take the token's place
        self._session.verify = True if trusted is None else str(trusted)

    async def __call__(self, method: str, url: str, authorization: str | None, body: Any) -> Answer:
        return await run_in_threadpool(self._ask, method, url, authorization, body)

    def _ask(self, method: str, url: str, authorization: str | None, body: Any) -> Answer:
        headers = {} if authorization is None else {"Authorization": authorization}
        try:
            response = self._session.request(
                method, url, headers=headers, json=body, timeout=_SECONDS, allow_redirects=False
            )
        except (requests.RequestException, OSError) as error:
            place = url.split("?")[0]
            raise UnreachableError(f"the other sidecar does not respond at {place} ({type(error).__name__})") from error
        return answer_of(response.status_code, response.content)
