"""The snapshot that ZooKeeper's AdminServer takes and streams on request (3.9 and later).

It is fuzzy like every snapshot, but it begins when it is asked for, and the header says as of which zxid. The server
wants a credential even where its root is open to everybody, and grants the snapshot to whoever has all rights on ``/``.
"""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from urllib3.exceptions import HTTPError

from pulsar_sidecar.adapters.metadata.dumps.snapshot_nodes import OpenSnapshot, SnapshotNodes
from pulsar_sidecar.adapters.metadata.session import ZooKeeperCredential
from pulsar_sidecar.audit.sources.manifests import Source, SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError, UnreachableError
from pulsar_sidecar.model.tls import trusting

_NOBODY = ZooKeeperCredential("digest", "pulsar-sidecar:")
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 300.0
_BUFFER_BYTES = 1024 * 1024
_OK = 200
_SAFE_VERSION = (3, 9, 4)
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_ADVICE = {
    401: "it takes no such credential: give one of an enabled scheme",
    403: "the credential lacks rights: it needs all of them on /; give --metadata-store-auth digest:user:password",
    404: "it has no snapshot command: that takes ZooKeeper 3.9 or later; use zk:// instead",
    429: "it was asked a short while ago; wait (admin.rateLimiterIntervalInMS, 5 minutes by default)",
    503: "the command is switched off; set admin.snapshot.enabled=true",
}


class AdminServer:
    """One AdminServer, ``http://host:port`` or ``https://host:port``."""

    def __init__(
        self,
        url: str,
        say: Callable[[str], None],
        *,
        credential: ZooKeeperCredential | None = None,
        trusted_certificates: Path | None = None,
        session: requests.Session | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._say = say
        self._credential = credential or _NOBODY
        self._session = session or requests.Session()
        # Nothing of the environment (proxies, netrc) is sent to it.
        self._session.trust_env = False
        trusting(trusted_certificates)  # requests would tell a file that cannot be used only at the first request
        if trusted_certificates is not None:
            self._session.verify = str(trusted_certificates)

    def nodes(self, *, chroot: str = "", skip: tuple[str, ...] = ()) -> SnapshotNodes:
        """The nodes of a snapshot that is taken when they are read."""
        source = Source(SourceKind.ZOOKEEPER_ADMIN, self._url)
        return SnapshotNodes(source, self._snapshot, chroot=chroot, skip=skip)

    @contextmanager
    def _snapshot(self) -> Iterator[OpenSnapshot]:
        self._warn_of_old_versions()
        try:
            with self._ask("/commands/snapshot?streaming=true", stream=True) as response:
                self._demand_ok(response)
                response.raw.auto_close = False
                stream = io.BufferedReader(response.raw, _BUFFER_BYTES)
                yield OpenSnapshot(stream, _last_zxid(response))
        except HTTPError as error:
            raise UnreachableError(f"the stream from {self._url} broke off ({error}); begin again") from error

    def _ask(self, path: str, *, stream: bool = False) -> requests.Response:
        headers = {"Accept-Encoding": "identity"}
        if stream:
            headers["Authorization"] = f"{self._credential.scheme} {self._credential.secret}"
        try:
            return self._session.get(
                self._url + path,
                headers=headers,
                stream=stream,
                timeout=(_CONNECT_SECONDS, _READ_SECONDS),
                allow_redirects=False,
            )
        except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema) as error:
            raise InvalidInputError(f"{self._url!r} is no address of an AdminServer ({error})") from error
        except requests.RequestException as error:
            raise UnreachableError(
                f"the AdminServer at {self._url} gave no answer ({error}); check admin.enableServer and the address"
            ) from error

    def _demand_ok(self, response: requests.Response) -> None:
        if response.status_code != _OK:
            advice = _ADVICE.get(response.status_code, "look into ZooKeeper's log")
            raise TemporaryError(f"the AdminServer at {self._url} answered {response.status_code}: {advice}")

    def _warn_of_old_versions(self) -> None:
        match = _VERSION.search(self._ask("/commands/srvr").text)
        if match is None:
            return
        version = tuple(int(part) for part in match.groups())
        if version < _SAFE_VERSION:
            self._say(
                f"ZooKeeper {match[0]} hands snapshots to users with few rights (CVE-2025-58457); "
                "upgrade to 3.9.4 or close the AdminServer's port"
            )


def _last_zxid(response: requests.Response) -> int:
    text = response.headers.get("last_zxid", "")
    try:
        return int(text, 16)
    except ValueError as error:
        raise TemporaryError(f"the AdminServer's answer has no last_zxid ({text!r:.40}); is this ZooKeeper?") from error
