"""Requests of the command line, and outcomes; no Arrow, so that ``--help`` is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_ENTRIES_PER_SECOND: Final = 20_000.0
"""Default rate of entries from bookies per second, a part of what one of them can deliver."""


@dataclass(frozen=True, slots=True)
class StoredMessagesRequest:
    """Source of stored messages, addressed as in broker.conf, with ``scheme:credential``.

    ``entries_per_second`` is the maximum rate of reading; None for no limit.
    """

    metadata_store_url: str | None
    metadata_store_auth: str | None = None
    ledgers_root: str = "/ledgers"
    entries_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Request of ``deduplication verify``."""

    topic: str
    stored: StoredMessagesRequest


@dataclass(frozen=True, slots=True)
class ExtractRequest:
    """Request of ``deduplication extract``; the scope is a tenant, a namespace or a topic."""

    scope: str
    output: Path
    stored: StoredMessagesRequest


@dataclass(frozen=True, slots=True)
class DuplicatesRequest:
    """Request of ``deduplication duplicates``: search an extract, and write the findings to a directory."""

    extract: Path
    output: Path


@dataclass(frozen=True, slots=True)
class DuplicatesOutcome:
    """Outcome of a search."""

    exit_code: int
    sentence: str
    next_step: str
