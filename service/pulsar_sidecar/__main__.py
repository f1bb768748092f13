"""The process: ``pulsar-sidecar`` and ``python -m pulsar_sidecar`` are the same command line."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pulsar_sidecar.cli.app import command_line
from pulsar_sidecar.cli.programs import Programs


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    try:
        command_line(programs())(prog_name="pulsar-sidecar")
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain about it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def programs() -> Programs:
    """What `bootstrap` builds, each imported when it is called, so that ``--help`` answers at once."""
    return Programs(
        serve=_serve,
        run_demo=_Lazy("demo", "run_demo"),
        tear_demo_down=_Lazy("demo", "tear_demo_down"),
        make_dump=_Lazy("audit_sources", "make_dump"),
        make_listing=_Lazy("audit_sources", "make_listing"),
        make_audit=_Lazy("audit_run", "make_audit"),
        show_audit=_Lazy("audit_review", "show_audit"),
        explain_ledger=_Lazy("audit_review", "explain_ledger"),
        apply_audit=_Lazy("audit_review", "apply_audit"),
        report_audit=_Lazy("audit_review", "report_audit"),
        prune_archive=_Lazy("audit_review", "prune_archive"),
    )


def _serve(flags: Mapping[str, str | None], config: Path | None) -> int:
    from pulsar_sidecar.bootstrap.app import serve

    return serve(flags, os.environ, config)


@dataclass(frozen=True, slots=True)
class _Lazy:
    """A function of a module of `bootstrap` that is imported when it is called."""

    module: str
    function: str

    def load(self) -> Callable[..., Any]:
        loaded: Callable[..., Any] = getattr(import_module(f"pulsar_sidecar.bootstrap.{self.module}"), self.function)
        return loaded

    def __call__(self, *arguments: Any) -> Any:
        return self.load()(*arguments)


if __name__ == "__main__":
    main()
