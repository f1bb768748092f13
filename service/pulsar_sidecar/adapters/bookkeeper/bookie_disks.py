"""What bookies have on their disks, by their own word: entries of ledgers, and the figures of their HTTP service.

A bookie's HTTP service is found where the bookie has registered it; without ``httpServerEnabled`` there is none.
"""

import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import requests

from pulsar_sidecar.adapters.bookkeeper.bookie_addresses import endpoints_of
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import LAST_STORED, BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import cumulative_bytes
from pulsar_sidecar.ledger_ownership.paths import bookie_registration_paths
from pulsar_sidecar.ledger_ownership.pins.ports import BookieFigures, BookieState, Compaction, StoredCopies
from pulsar_sidecar.ledger_ownership.registrations import bookie_states
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore

_DEADLINE_SECONDS: Final = 5.0
"""For all that one bookie is asked; bookies are asked side by side."""
_LEAST_SECONDS: Final = 0.1
_DOWN: Final = "it is down: it is not registered in the metadata store"
_NO_SERVICE: Final = "it has registered no HTTP service: set httpServerEnabled=true in its bookkeeper.conf"
_PATHS: Final = (
    "/api/v1/config/server_config", "/api/v1/bookie/info", "/api/v1/bookie/gc", "/api/v1/bookie/gc/suspend_compaction",
)  # fmt: skip
_ACTIVE: Final = ("ENTRY_LOG_SPACE_BYTES", "ENTRY_LOG_TOTAL", "LEDGER_TOTAL")


class RegisteredBookies:
    """`ledger_ownership.pins.ports.Bookies`; nothing of the environment (proxies, netrc) is sent to bookies."""

    def __init__(self, store: MetadataStore, connections: BookieConnections, threads: Executor, root: str) -> None:
        self._store, self._connections, self._threads = store, connections, threads
        self._root = root
        self._session = requests.Session()
        self._session.trust_env = False

    def known(self) -> Mapping[BookieId, BookieState]:
        return bookie_states(self._store, self._root)

    def copies(self, ledger_id: LedgerId) -> StoredCopies:
        bookies = list(self.known())
        asked = list(self._threads.map(lambda bookie: self._last_stored(bookie, ledger_id), bookies))
        sizes = {bookie: size for bookie, size in zip(bookies, asked, strict=True) if isinstance(size, int)}
        unanswered = tuple(bookie for bookie, size in zip(bookies, asked, strict=True) if isinstance(size, Unreadable))
        return StoredCopies(max(sizes.values(), default=0), tuple(sizes), unanswered)

    def figures(self, bookies: Sequence[BookieId]) -> Mapping[BookieId, BookieFigures | Unreadable]:
        return dict(zip(bookies, self._threads.map(self._figures, bookies), strict=True))

    def close(self) -> None:
        """Close the connections; idempotent."""
        self._session.close()

    def _figures(self, bookie: BookieId) -> BookieFigures | Unreadable:
        try:
            url = self._service(bookie)
            if isinstance(url, Unreadable):
                return url
            give_up = time.monotonic() + _DEADLINE_SECONDS
            answers = [self._json(url, path, give_up) for path in _PATHS]
            return figures_of(url, self._ask(url, "/metrics", give_up).text, *answers)
        except SidecarError as error:
            return Unreadable(str(error))

    def _last_stored(self, bookie: BookieId, ledger_id: LedgerId) -> int | Unreadable | None:
        """The ledger's length up to the last entry that the bookie holds; None if it holds none."""
        try:
            entry = self._connections.read_many(bookie, ledger_id, [LAST_STORED]).get(LAST_STORED)
        except SidecarError as error:
            return Unreadable(str(error))
        return None if entry is None else cumulative_bytes(entry)

    def _service(self, bookie: BookieId) -> str | Unreadable:
        nodes = self._store.read_many(bookie_registration_paths(bookie, self._root))
        registered = [node for node in nodes if node is not None]
        for endpoint in (each for node in registered for each in endpoints_of(node)):
            if endpoint.protocol == "http":
                return f"http://{endpoint.host}:{endpoint.port}"
        return Unreadable(_NO_SERVICE if registered else _DOWN)

    def _json(self, url: str, path: str, give_up: float) -> Mapping[str, Any]:
        answer = self._ask(url, path, give_up)
        try:
            document = answer.json()
        except ValueError as error:
            raise TemporaryError(f"{url}{path} did not answer with JSON; try again") from error
        return document if isinstance(document, dict) else {}

    def _ask(self, url: str, path: str, give_up: float) -> requests.Response:
        left = max(_LEAST_SECONDS, give_up - time.monotonic())
        try:
            answer = self._session.get(f"{url}{path}", timeout=left, allow_redirects=False)
        except requests.RequestException as error:
            raise TemporaryError(f"{url} gave no answer ({type(error).__name__}); try again") from error
        if answer.status_code != requests.codes.ok:
            raise TemporaryError(f"{url}{path} answered {answer.status_code}; try again")
        return answer


def figures_of(
    url: str,
    metrics: str,
    settings: Mapping[str, Any],
    disks: Mapping[str, Any],
    collection: Mapping[str, Any],
    suspended: Mapping[str, Any],
) -> BookieFigures | Unreadable:
    """From a bookie's metrics and settings; the settings are texts, BookKeeper's own defaults where they lack."""
    measured = [_sum(metrics, f"bookie_ACTIVE_{name}") for name in _ACTIVE]
    if None in measured:
        return Unreadable("its metrics lack bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES: see statsProviderClass")
    whole, free = disks.get("totalSpace"), disks.get("freeSpace")
    if not isinstance(whole, int) or not isinstance(free, int):
        return Unreadable("its /api/v1/bookie/info lacks totalSpace or freeSpace; try again")
    live_bytes, entry_logs, ledgers = (int(each or 0) for each in measured)
    return BookieFigures(
        http_url=url,
        live_bytes=live_bytes,
        entry_logs=entry_logs,
        ledgers=ledgers,
        disk_used_bytes=whole - free,
        disk_total_bytes=whole,
        gc_wait_seconds=_number(settings, "gcWaitTime", 600_000) / 1_000,
        entry_log_limit_bytes=int(_number(settings, "logSizeLimit", 1 << 30)),
        minor=_compaction(settings, "minor", Compaction(0.2, 3_600, _is_true(suspended, "isMinorGcSuspended"))),
        major=_compaction(settings, "major", Compaction(0.8, 86_400, _is_true(suspended, "isMajorGcSuspended"))),
        is_collecting=_is_true(collection, "is_in_force_gc"),
    )


def _compaction(settings: Mapping[str, Any], kind: str, usual: Compaction) -> Compaction:
    return Compaction(
        _number(settings, f"{kind}CompactionThreshold", usual.threshold),
        _number(settings, f"{kind}CompactionInterval", usual.interval_seconds),
        usual.is_suspended,
    )


def _is_true(answer: Mapping[str, Any], name: str) -> bool:
    """Bookies write it as a text."""
    return str(answer.get(name)).lower() == "true"


def _sum(metrics: str, name: str) -> float | None:
    """Over the bookie's directories; None if it does not report it."""
    found = re.findall(rf"^{name}(?:\{{[^}}\n]*\}})? ([0-9.eE+-]+)$", metrics, re.MULTILINE)
    return sum(map(float, found)) if found else None


def _number(settings: Mapping[str, Any], name: str, usual: float) -> float:
    try:
        return float(settings.get(name, usual))
    except (TypeError, ValueError):
        return usual
