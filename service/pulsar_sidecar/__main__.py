"""The process: ``pulsar-sidecar`` and ``python -m pulsar_sidecar`` are the same command line."""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pulsar_sidecar.adapters.parquet.own_process import without_pandas
from pulsar_sidecar.cli.app import Programs, command_line
from pulsar_sidecar.cli.groups.audit import AuditPrograms

if TYPE_CHECKING:
    from pulsar_sidecar.audit.audit_requests import (
        Applied,
        ApplyRequest,
        ExplainRequest,
        Pruned,
        PruneRequest,
        ReportRequest,
        Shown,
        ShowRequest,
    )
    from pulsar_sidecar.audit.sources.manifests import Manifest
    from pulsar_sidecar.audit.sources.requests import Audited, AuditRequest, DumpRequest, ListingRequest
    from pulsar_sidecar.demo.playing import Report


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    without_pandas()
    try:
        audits = AuditPrograms(_run_audit, _show_audit, _explain_ledger, _apply_audit, _report_audit, _prune_archive)
        programs = Programs(_serve, _play_demo, _strike_demo, _make_dump, _make_listing, audits)
        command_line(programs)(prog_name="pulsar-sidecar")
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain about it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _serve(flags: Mapping[str, str | None], config: Path | None) -> int:
    from pulsar_sidecar.bootstrap.app import serve

    return serve(flags, os.environ, config)


def _play_demo(directory: Path | None, topics: int, say: Callable[[str], None]) -> "Report":
    from pulsar_sidecar.bootstrap.demo import play_demo

    return play_demo(directory, topics, say)


def _strike_demo(directory: Path | None, say: Callable[[str], None]) -> None:
    from pulsar_sidecar.bootstrap.demo import strike_demo

    strike_demo(directory, say)


def _make_dump(request: "DumpRequest", say: Callable[[str], None]) -> "Manifest":
    from pulsar_sidecar.bootstrap.audit_sources import make_dump

    return make_dump(request, say)


def _make_listing(request: "ListingRequest", say: Callable[[str], None]) -> "Manifest":
    from pulsar_sidecar.bootstrap.audit_sources import make_listing

    return make_listing(request, say)


def _run_audit(request: "AuditRequest", say: Callable[[str], None]) -> "Audited":
    from pulsar_sidecar.bootstrap.audit_run import make_audit

    return make_audit(request, say)


def _show_audit(request: "ShowRequest") -> "Shown":
    from pulsar_sidecar.bootstrap.audit_review import show_audit

    return show_audit(request)


def _explain_ledger(request: "ExplainRequest") -> str:
    from pulsar_sidecar.bootstrap.audit_review import explain_ledger

    return explain_ledger(request)


def _apply_audit(request: "ApplyRequest", tell: Callable[[int, int], None]) -> "Applied":
    from pulsar_sidecar.bootstrap.audit_review import apply_audit

    return apply_audit(request, tell)


def _report_audit(request: "ReportRequest") -> Path:
    from pulsar_sidecar.bootstrap.audit_review import report_audit

    return report_audit(request)


def _prune_archive(request: "PruneRequest") -> "Pruned":
    from pulsar_sidecar.bootstrap.audit_review import prune_archive

    return prune_archive(request)


if __name__ == "__main__":
    main()
