"""The process: ``pulsar-sidecar`` and ``python -m service`` are the same command line."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from service.cli.app import command_line


def main() -> None:
    """Run the command line; ends the process with its exit code."""
    try:
        command_line(_serve)(prog_name="pulsar-sidecar")
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not complain about it while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _serve(flags: Mapping[str, str | None], config: Path | None) -> int:
    from service.bootstrap import serve

    return serve(flags, os.environ, config)


if __name__ == "__main__":
    main()
