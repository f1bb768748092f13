"""What the command line starts but cannot build: each of these comes from `bootstrap`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pulsar_sidecar.audit.requests import (
        Applied,
        ApplyRequest,
        Audited,
        AuditRequest,
        DumpRequest,
        ListingRequest,
        Pruned,
        Shown,
    )
    from pulsar_sidecar.audit.sources.manifests import Manifest
    from pulsar_sidecar.demo.run import Report

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Programs:
    """One callable for each; progress goes to the callable that it is given.

    Attributes:
        serve: runs the service with flags and a configuration file until a signal stops it; the exit code.
    """

    serve: Callable[[Mapping[str, str | None], Path | None], int]
    run_demo: "Callable[[Path | None, int, Say], Report]"
    tear_demo_down: Callable[[Path | None, Say], None]
    make_dump: "Callable[[DumpRequest, Say], Manifest]"
    make_listing: "Callable[[ListingRequest, Say], Manifest]"
    make_audit: "Callable[[AuditRequest, Say], Audited]"
    show_audit: "Callable[[Path, Sequence[str], Mapping[str, str], int], Shown]"
    explain_ledger: Callable[[Path, int, Path | None], str]
    apply_audit: "Callable[[ApplyRequest, Callable[[int, int], None]], Applied]"
    report_audit: Callable[[Path, Path | None], Path]
    prune_archive: "Callable[[Path, int, float, bool], Pruned]"
