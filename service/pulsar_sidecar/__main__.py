"""The process: ``pulsar-sidecar`` and ``python -m pulsar_sidecar`` run the same command line."""

import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from pulsar_sidecar.bootstrap.commands import command_line
from pulsar_sidecar.cli.command_groups import ExitCode
from pulsar_sidecar.cli.connecting import Programs
from pulsar_sidecar.model.errors import PermanentError


def main() -> None:
    """Run the command line and end the process with its exit code."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal's encoding lacks is no failure
    try:
        command_line()(prog_name="pulsar-sidecar", obj=programs())
    except SystemExit as end:
        if end.code == ExitCode.INTERRUPTED:
            os._exit(ExitCode.INTERRUPTED)  # at once, although threads still wait for responses
        raise
    except BrokenPipeError:
        # The reader of the output has closed it; the interpreter must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def programs() -> Programs:
    """Return the programs of `bootstrap`, each imported when called, to keep ``--help`` fast."""
    return Programs(
        serve=_serve,
        run_demo=partial(_call_with_spark, "demo", "run_demo"),
        tear_demo_down=partial(_call, "demo", "tear_demo_down"),
        find_stuck_in_dump=partial(_call_with_tables, "deduplication_files", "find_stuck_in_dump"),
        take_dump=partial(_call_with_tables, "audit_sources", "take_dump"),
        export_listing=partial(_call_with_tables, "audit_sources", "export_listing"),
        export_offload_listing=partial(_call_with_tables, "audit_sources", "export_offload_listing"),
        perform_audit=partial(_call_with_tables, "audit_run", "perform_audit"),
        show_audit=partial(_call_with_tables, "audit_review", "show_audit"),
        explain_ledger=partial(_call_with_tables, "audit_review", "explain_ledger"),
        apply_audit=partial(_call_with_tables, "audit_review", "apply_audit"),
        report_audit=partial(_call_with_tables, "audit_review", "report_audit"),
        push_audit=partial(_call_with_tables, "audit_review", "push_audit"),
        prune_archive=partial(_call_with_tables, "audit_review", "prune_archive"),
        verify_stored=partial(_call, "stored_messages", "verify_stored"),
        look_for_duplicates=partial(_call_with_tables, "deduplication_files", "look_for_duplicates"),
        take_extract=partial(_call_with_tables, "extracts", "take_extract"),
        run_doctor=partial(_call, "app", "run_doctor"),
        publish_file=partial(_call, "exactly_once", "publish_file"),
    )


def _serve(flags: Mapping[str, str | None], config: Path | None) -> int:
    exit_code: int = _call("app", "serve", flags, os.environ, config)
    return exit_code


def _call_with_spark(module: str, function: str, *arguments: Any) -> Any:
    """Call the demo; raise `PermanentError` if PySpark is not installed."""
    if find_spec("pyspark") is None:
        raise PermanentError(
            "the demo compares an audit with Spark's and needs PySpark, which is not installed; pip install "
            "'pulsar-sidecar[demo]'"
        )
    return _call(module, function, *arguments)


def _call(module: str, function: str, *arguments: Any) -> Any:
    """Import a module of `bootstrap` and call one of its functions."""
    return getattr(import_module(f"pulsar_sidecar.bootstrap.{module}"), function)(*arguments)


def _call_with_tables(module: str, function: str, *arguments: Any) -> Any:
    """Call a function that needs Arrow; raise `PermanentError` if that is not installed."""
    if find_spec("pyarrow") is None:
        raise PermanentError(
            "this command needs Apache Arrow, which is not installed; pip install 'pulsar-sidecar[audit]', "
            "or use the image pulsar-sidecar-audit"
        )
    return _call(module, function, *arguments)


if __name__ == "__main__":
    main()
