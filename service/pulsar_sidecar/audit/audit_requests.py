"""What a user asks of an audit that was made, in the words of the command line; no Arrow, so ``--help`` is quick."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class ShowRequest:
    """``audit show``.

    Attributes:
        tables: of ``orphans``, ``missing``, ``unattributed`` and ``usage`` those whose rows are wanted.
        equal: column to value: only such rows.
        limit: most rows of each table.
    """

    audit: Path
    tables: tuple[str, ...] = ()
    equal: Mapping[str, str] = field(default_factory=dict)
    limit: int = 20


@dataclass(frozen=True, slots=True)
class Shown:
    """What there is to say.

    Attributes:
        text: for people.
        document: the same, and all of the summary, as JSON has it.
        exit_code: 0 nothing was found, 2 something was, 1 a guard said no.
    """

    text: str
    document: dict[str, Any]
    exit_code: int


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """``audit explain``; ``dump`` is a directory in which references are looked for."""

    audit: Path
    ledger_id: int
    dump: Path | None = None


@dataclass(frozen=True, slots=True)
class ApplyRequest:
    """``audit apply``.

    Attributes:
        execute: send; otherwise only look.
        plan_sha256: the plan that was approved.
        rate: most records a second.
        metadata_store_url: as in ``broker.conf``; its cluster must be the audit's.
        broker_service_url: where the deletion service's topic is.
    """

    audit: Path
    execute: bool = False
    plan_sha256: str | None = None
    rate: float | None = None
    max_age_hours: float = 72.0
    metadata_store_url: str | None = None
    metadata_store_auth: str | None = field(default=None, repr=False)
    broker_service_url: str | None = None
    auth_plugin: str | None = None
    auth_params: str | None = field(default=None, repr=False)
    tls_trust_certs_file: Path | None = None
    tls_allow_insecure: bool = False
    tls_verify_hostname: bool = True


@dataclass(frozen=True, slots=True)
class Applied:
    """What an application did, or would do."""

    audit_id: str
    plan_sha256: str
    rows: int
    bytes: int | None
    executed: bool
    sent: int = 0
    sent_earlier: int = 0
    warnings: tuple[str, ...] = ()
    unknown_size_ledgers: int = 0


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """``audit report``; ``output`` None is the audit's own ``report.html``."""

    audit: Path
    output: Path | None = None


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """``audit prune``.

    Attributes:
        directory: below which audits, dumps and listings are.
        keep: so many of the newest of each kind stay in any case.
        older_than_days: what is younger stays.
    """

    directory: Path
    keep: int = 5
    older_than_days: float = 30.0
    execute: bool = False


@dataclass(frozen=True, slots=True)
class Pruned:
    """What goes, or went, and why the rest stays."""

    removed: tuple[Path, ...]
    kept: Mapping[Path, str]
    executed: bool
