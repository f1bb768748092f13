"""Bookies' disks by the bookies' own reports: entries of ledgers, and the figures of their HTTP service.

A bookie registers its HTTP service in the metadata store; without ``httpServerEnabled`` there is none.
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
from pulsar_sidecar.features.ledger_deletion.ports import Collected, ReclaimedSpace
from pulsar_sidecar.features.pins.ports import StoredCopies
from pulsar_sidecar.features.pins.results import BookieFigures, Compaction
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import bookie_registration_paths
from pulsar_sidecar.ownership.registrations import BookieState, bookie_states

_DEADLINE_SECONDS: Final = 5.0
"""Deadline for all requests to one bookie; the sidecar queries bookies concurrently."""
_LEAST_SECONDS: Final = 0.1
_DOWN: Final = "it is down: it is not registered in the metadata store"
_NO_SERVICE: Final = "it has registered no HTTP service: set httpServerEnabled=true in its bookkeeper.conf"
_PATHS: Final = (
    "/api/v1/config/server_config", "/api/v1/bookie/info", "/api/v1/bookie/gc", "/api/v1/bookie/gc/suspend_compaction",
)  # fmt: skip
_ACTIVE: Final = ("ENTRY_LOG_SPACE_BYTES", "ENTRY_LOG_TOTAL", "LEDGER_TOTAL")


class RegisteredBookies:
    """`pins.ports.Bookies` and `ledger_deletion.ports.BookieCollections`; requests ignore the environment's proxies."""

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

    def collected(self, ledgers: Sequence[LedgerId]) -> Mapping[BookieId, Collected]:
        bookies = list(self.known())
        return dict(zip(bookies, self._threads.map(lambda each: self._collected(each, ledgers), bookies), strict=True))

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
            return figures_of(url, self._get(url, "/metrics", give_up).text, *answers)
        except SidecarError as error:
            return Unreadable(str(error))

    def _collected(self, bookie: BookieId, ledgers: Sequence[LedgerId]) -> Collected:
        return Collected(self._waiting(bookie, ledgers), self._reclaimed(bookie))

    def _waiting(self, bookie: BookieId, ledgers: Sequence[LedgerId]) -> Mapping[LedgerId, int] | Unreadable:
        found = {}
        for ledger_id in ledgers:
            size = self._last_stored(bookie, ledger_id)
            if isinstance(size, Unreadable):
                return size
            if size is not None:
                found[ledger_id] = size
        return found

    def _reclaimed(self, bookie: BookieId) -> ReclaimedSpace | Unreadable:
        try:
            url = self._service(bookie)
            give_up = time.monotonic() + _DEADLINE_SECONDS
            return url if isinstance(url, Unreadable) else reclaimed_in(self._get(url, "/metrics", give_up).text)
        except SidecarError as error:
            return Unreadable(str(error))

    def _last_stored(self, bookie: BookieId, ledger_id: LedgerId) -> int | Unreadable | None:
        """Return the ledger's length up to the last entry that the bookie holds; None if it holds none."""
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
        answer = self._get(url, path, give_up)
        try:
            document = answer.json()
        except ValueError as error:
            raise TemporaryError(f"{url}{path} returned no JSON; try again") from error
        return document if isinstance(document, dict) else {}

    def _get(self, url: str, path: str, give_up: float) -> requests.Response:
        left = max(_LEAST_SECONDS, give_up - time.monotonic())
        try:
            answer = self._session.get(f"{url}{path}", timeout=left, allow_redirects=False)
        except requests.RequestException as error:
            raise TemporaryError(f"{url} did not respond ({type(error).__name__}); try again") from error
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
    """Return the figures in a bookie's metrics and settings; the settings are strings, with BookKeeper's defaults."""
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


def reclaimed_in(metrics: str) -> ReclaimedSpace | Unreadable:
    """Return the space that a bookie has reclaimed, out of its metrics: by deleted and by compacted entry logs."""
    measured = [_sum(metrics, f"bookie_RECLAIMED_{kind}_SPACE_BYTES") for kind in ("DELETION", "COMPACTION")]
    started_seconds = _sum(metrics, "process_start_time_seconds")
    if None in measured or started_seconds is None:
        return Unreadable("its metrics lack bookie_RECLAIMED_DELETION_SPACE_BYTES: see statsProviderClass")
    return ReclaimedSpace(sum(int(each or 0) for each in measured), round(started_seconds * 1_000))


def _compaction(settings: Mapping[str, Any], kind: str, usual: Compaction) -> Compaction:
    return Compaction(
        _number(settings, f"{kind}CompactionThreshold", usual.threshold),
        _number(settings, f"{kind}CompactionInterval", usual.interval_seconds),
        usual.is_suspended,
    )


def _is_true(answer: Mapping[str, Any], name: str) -> bool:
    return str(answer.get(name)).lower() == "true"


def _sum(metrics: str, name: str) -> float | None:
    """Return the sum over the bookie's directories; None if it does not report the metric."""
    found = re.findall(rf"^{name}(?:\{{[^}}\n]*\}})? ([0-9.eE+-]+)$", metrics, re.MULTILINE)
    return sum(map(float, found)) if found else None


def _number(settings: Mapping[str, Any], name: str, usual: float) -> float:
    try:
        return float(settings.get(name, usual))
    except (TypeError, ValueError):
        return usual
