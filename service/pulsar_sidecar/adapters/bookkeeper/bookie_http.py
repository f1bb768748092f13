"""BookKeeper's HTTP admin API, for when the metadata store itself is out of reach.

Its delete is unconditional: nothing guards against a ledger that changed after it was judged, which is why this is a
fallback and outcomes record it. Any exception inside a bookie answers 500 without a reason, so a 500 proves nothing: a
ledger counts as gone only when a complete listing of all ids lacks it.
"""

from collections.abc import Mapping, Sequence

import requests
from urllib3.exceptions import LocationParseError, NewConnectionError

from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError, UnreachableError
from pulsar_sidecar.model.ids import LedgerId, parse_ledger_id

_OK = 200


class BookieHttp:
    """Any bookie can answer for the whole cluster; ``base_urls`` (``http://host:port``) are tried in turn.

    Satisfies `DirectLedgerDeletion`. Bookies know no credentials here: nothing of the environment (proxies, netrc) is
    sent to them.
    """

    def __init__(self, base_urls: Sequence[str], *, timeout_seconds: float = 30.0) -> None:
        self._base_urls = [url.rstrip("/") for url in base_urls]
        self._timeout_seconds = timeout_seconds
        self._session = requests.Session()
        self._session.trust_env = False

    def ledger_ids(self) -> list[LedgerId]:
        """Every ledger of the cluster, ascending; complete, or `TemporaryError`."""
        response = self._ask("GET", "/api/v1/ledger/list")
        if response.status_code != _OK:
            raise TemporaryError(f"{_answered(response)} to a listing of ledgers; try again")
        try:
            return sorted(_ledger_id(key) for key in response.json())
        except (ValueError, TypeError) as error:
            raise TemporaryError(f"{_answered(response)} with something that is not a listing of ledgers") from error

    def ledger_metadata(self, ledger_id: LedgerId) -> str | None:
        """The ledger's metadata as JSON, None when no metadata came: a bookie does not report why."""
        response = self._ask("GET", "/api/v1/ledger/metadata", {"ledger_id": str(ledger_id)})
        return response.text if response.status_code == _OK else None

    def ledger_exists(self, ledger_id: LedgerId) -> bool:
        """Whether the cluster has metadata of the ledger; `TemporaryError` when no bookie could answer."""
        return self.ledger_metadata(ledger_id) is not None or ledger_id in self.ledger_ids()

    def delete(self, ledger_id: LedgerId) -> None:
        """Delete the ledger, at whatever version it is; one that is gone already is success.

        Raises:
            TemporaryError: no bookie could be reached.
            OutcomeUnknownError: the ledger is still there although a bookie was asked, or no bookie could answer.
        """
        try:
            response = self._ask("DELETE", "/api/v1/ledger/delete", {"ledger_id": str(ledger_id)})
        except _MaybeSentError as error:
            raise OutcomeUnknownError(f"{error}; look whether ledger {ledger_id} exists") from error
        if response.status_code == _OK:
            return
        try:
            exists = self.ledger_exists(ledger_id)
        except TemporaryError as error:
            raise OutcomeUnknownError(f"{_answered(response)}; look whether ledger {ledger_id} exists") from error
        if exists:
            raise OutcomeUnknownError(
                f"{_answered(response)} and ledger {ledger_id} is still there; look again, then retry"
            )

    def check(self) -> None:
        """Return if a bookie answers; `TemporaryError` if not."""
        response = self._ask("GET", "/heartbeat")
        if response.status_code != _OK:
            raise TemporaryError(f"it answered {response.status_code} to /heartbeat; try again")

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._session.close()

    def _ask(self, method: str, path: str, parameters: Mapping[str, str] | None = None) -> requests.Response:
        failure: TemporaryError = TemporaryError("no bookie's HTTP address is configured; set one")
        for base_url in self._base_urls:
            try:
                return self._session.request(
                    method, base_url + path, params=parameters, timeout=self._timeout_seconds, allow_redirects=False
                )
            except (requests.RequestException, LocationParseError) as error:
                if isinstance(failure, _MaybeSentError):
                    continue
                kind = UnreachableError if _never_sent(error) else _MaybeSentError
                failure = kind(f"{base_url} gave no answer ({type(error).__name__}); try again")
                failure.__cause__ = error
        raise failure


class _MaybeSentError(UnreachableError):
    """The request may have reached the bookie."""


def _never_sent(error: Exception) -> bool:
    """Whether there was not even a connection."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(error, requests.ConnectTimeout | LocationParseError) or isinstance(reason, NewConnectionError)


def _answered(response: requests.Response) -> str:
    return f"the bookie at {response.url.partition('/api/')[0]} answered {response.status_code}"


def _ledger_id(text: object) -> LedgerId:
    ledger_id = parse_ledger_id(text) if isinstance(text, str) else None
    if ledger_id is None:
        raise ValueError(f"{text!r:.80} is not a ledger id")
    return ledger_id
