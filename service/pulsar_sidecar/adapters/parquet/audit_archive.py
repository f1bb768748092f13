"""The audits in one directory, by their ids; needs no Arrow.

Invariant: the archive reads a summary again as soon as its file changes, and reports one that cannot be read.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulsar_sidecar.adapters.parquet.directories import archived_below, read_document, read_summary, summaries_below
from pulsar_sidecar.features.audit.results.answers import UnreadableAudit
from pulsar_sidecar.features.audit.results.summaries import KIND, AuditSummary
from pulsar_sidecar.features.audit.sources.manifests import InputKind
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.reports.documents import SUMMARY_NAME

_DUMP: Final = "dump"


@dataclass(frozen=True, slots=True)
class ArchivedAudit:
    """An audit's directory and summary, whose tables were not compared with it."""

    path: Path
    summary: AuditSummary


class AuditArchive:
    """Audits, dumps and listings below a directory, at most three directories deep."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[tuple[int, int], ArchivedAudit | UnreadableAudit | None]] = {}

    def audits(self) -> tuple[list[ArchivedAudit], list[UnreadableAudit]]:
        """Return the complete audits, newest first, and the unreadable ones; `TemporaryError` without the directory."""
        found = [self._audit_at(path) for path in summaries_below(self._directory)]
        audits = [each for each in found if isinstance(each, ArchivedAudit)]
        audits.sort(key=lambda each: (-each.summary.store_time_ms, str(each.path)))
        return audits, [each for each in found if isinstance(each, UnreadableAudit)]

    def audit(self, audit_id: str) -> ArchivedAudit:
        """Return the audit with this id. `NotFoundError`: there is none."""
        audits, unreadable = self.audits()
        for each in audits:
            if each.summary.audit_id == audit_id:
                return each
        others = f"; {len(unreadable)} in it cannot be read" if unreadable else ""
        raise NotFoundError(f"there is no audit {audit_id!r:.100} in {self._directory}{others}")

    def dump_of(self, summary: AuditSummary) -> Path | None:
        """Return the path of the audit's own dump; None if it is not below the directory."""
        sha256 = summary.inputs[_DUMP].sha256 if _DUMP in summary.inputs else None
        archived = archived_below(self._directory)
        dumps = (each.path for each in archived if each.kind == InputKind.DUMP.value and each.sha256 == sha256)
        return next(dumps, None)

    def _audit_at(self, path: Path) -> ArchivedAudit | UnreadableAudit | None:
        try:
            status = (path / SUMMARY_NAME).stat()
        except FileNotFoundError:
            return None  # it was removed meanwhile
        version = (status.st_mtime_ns, status.st_size)
        with self._lock:
            known = self._known.get(path)
        if known is not None and known[0] == version:
            return known[1]
        read = _read(path)
        with self._lock:
            self._known[path] = (version, read)
        return read


def _read(path: Path) -> ArchivedAudit | UnreadableAudit | None:
    try:
        document = read_document(path, SUMMARY_NAME, "")
        if isinstance(document, dict) and document.get("kind") != KIND:
            return None  # of another analysis
        return ArchivedAudit(path, read_summary(path))
    except InvalidInputError as error:
        return UnreadableAudit(str(path), str(error))
