"""What a user asks for, in the words of the command line; no Arrow, so ``--help`` is quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DEFAULT_ENTRIES_PER_SECOND: Final = 20_000.0
"""Entries read from bookies a second by default: a part of what one of them can deliver."""


@dataclass(frozen=True, slots=True)
class StoredMessagesRequest:
    """Where messages are, and how fast to read them.

    Attributes:
        metadata_store_url: as in broker.conf.
        metadata_store_auth: ``scheme:credential``.
        ledgers_root: BookKeeper's root path in the metadata store.
        entries_per_second: None for no limit.
    """

    metadata_store_url: str | None
    metadata_store_auth: str | None = None
    ledgers_root: str = "/ledgers"
    entries_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """``deduplication verify``."""

    topic: str
    stored: StoredMessagesRequest


@dataclass(frozen=True, slots=True)
class ExtractRequest:
    """``deduplication extract``; the scope is a tenant, a namespace or a topic."""

    scope: str
    output: Path
    stored: StoredMessagesRequest
